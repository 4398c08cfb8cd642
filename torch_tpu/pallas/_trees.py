"""What a kernel returns: nested tuples, lists and dicts of arrays, flattened without JAX."""

from __future__ import annotations

from typing import Any


def flatten(tree: Any) -> list[Any]:
    """The leaves, dicts in the order of their keys (as JAX has it)."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in flatten(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in flatten(item)]
    return [] if tree is None else [tree]


def shape_of(tree: Any) -> str:
    """How it is built, with `*` for a leaf: "(*, {'a': *})"."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {shape_of(tree[key])}" for key in sorted(tree)) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(shape_of(item) for item in tree) + "]"
    if isinstance(tree, tuple):
        return "(" + ", ".join(shape_of(item) for item in tree) + ("," * (len(tree) == 1)) + ")"
    return "None" if tree is None else "*"


def unflatten(template: Any, leaves: list[Any]) -> Any:
    """The template with other leaves, which are used up."""
    if isinstance(template, dict):
        made = {key: unflatten(template[key], leaves) for key in sorted(template)}
        return {key: made[key] for key in template}
    if isinstance(template, tuple) and hasattr(template, "_fields"):
        return type(template)(*(unflatten(item, leaves) for item in template))
    if isinstance(template, (list, tuple)):
        return type(template)(unflatten(item, leaves) for item in template)
    return None if template is None else leaves.pop(0)
