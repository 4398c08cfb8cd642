"""Nested arguments and results as JSON: lists, tuples, dicts and the like, with numbered tensors as
leaves. Our own form instead of torch's, so that a folder is read without the model's classes, by
other versions of torch, and by programs that are not Python."""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

Tree = dict[str, Any]
_CONSTANTS = (bool, int, float, str, type(None))


class TreeError(TypeError):
    """A value that does not have the form it had when the model was exported."""


def encode(spec: pytree.TreeSpec, leaves: list[Tree]) -> Tree:
    """A tree of that form; takes its leaves from the front of the list."""
    if spec.is_leaf():
        return leaves.pop(0)
    items = [encode(child, leaves) for child in spec.children()]
    kind, context = spec.type, spec.context
    if kind is list or kind is tuple:
        return {"list" if kind is list else "tuple": items}
    if kind is dict or kind is OrderedDict:
        keys = list(context)
        if all(isinstance(key, (str, int, bool)) for key in keys):
            return {"dict": [[key, item] for key, item in zip(keys, items, strict=True)]}
    if kind is namedtuple:
        name = f"{context.__module__}.{context.__qualname__}"
        return {"namedtuple": name, "fields": list(context._fields), "items": items}
    name = f"{getattr(kind, '__module__', '?')}.{getattr(kind, '__qualname__', kind)}"
    return {"object": name, "context": _plain_context(context), "items": items}


def tensor_leaf(number: int) -> Tree:
    """The tensor of that number."""
    return {"tensor": number}


def constant_leaf(value: Any, what: str) -> Tree:
    """What is not a tensor stays as it was when the model was exported."""
    if not isinstance(value, _CONSTANTS):
        raise RuntimeError(
            f"[export] {what} is a {type(value).__name__}. Tensors, numbers, text and None can be "
            "exported; make it one of these, or an attribute of the model."
        )
    return {"constant": value}


def flatten(tree: Tree, value: Any, where: str, out: list[Any]) -> None:
    """Appends the value's tensors in the order of their numbers. TreeErrors name `where`."""
    if "tensor" in tree:
        if not isinstance(value, torch.Tensor):
            raise TreeError(f"{where}: expected a tensor, got {type(value).__name__}")
        out.append(value)
    elif "constant" in tree:
        known = tree["constant"]
        if type(value) is not type(known) or value != known:
            raise TreeError(f"{where}: exported with {known!r}, called with {_short(value)}")
    elif "dict" in tree:
        _flatten_items(
            value, [k for k, _ in tree["dict"]], [t for _, t in tree["dict"]], where, out
        )
    elif "list" in tree or "tuple" in tree or "namedtuple" in tree:
        items = tree.get("list", tree.get("tuple", tree.get("items")))
        assert items is not None
        if not isinstance(value, (list, tuple)):
            raise TreeError(f"{where}: expected a sequence, got {type(value).__name__}")
        if len(value) != len(items):
            raise TreeError(f"{where}: expected {len(items)} items, got {len(value)}")
        for index, (item, part) in enumerate(zip(items, value, strict=True)):
            flatten(item, part, f"{where}[{index}]", out)
    else:
        _flatten_object(tree, value, where, out)


def _flatten_items(
    value: Any, keys: Sequence[Any], items: Sequence[Tree], where: str, out: list[Any]
) -> None:
    if not isinstance(value, Mapping):
        raise TreeError(f"{where}: expected a dict, got {type(value).__name__}")
    for key in keys:
        if key not in value:
            raise TreeError(f"{where} has no {key!r}")
    for key in value:
        if key not in keys:
            raise TreeError(f"{where} has {key!r}, which the exported call had not")
    for key, item in zip(keys, items, strict=True):
        flatten(item, value[key], f"{where}[{key!r}]", out)


def _flatten_object(tree: Tree, value: Any, where: str, out: list[Any]) -> None:
    node = pytree.SUPPORTED_NODES.get(type(value))
    if node is None or _name(type(value)) != tree["object"]:
        raise TreeError(f"{where}: expected a {tree['object']}, got a {_name(type(value))}")
    parts, context = node.flatten_fn(value)
    if len(parts) != len(tree["items"]) or _plain_context(context) != tree["context"]:
        raise TreeError(f"{where}: another {tree['object']} than the exported call had")
    for index, (item, part) in enumerate(zip(tree["items"], parts, strict=True)):
        flatten(item, part, f"{where}.<{index}>", out)


def numbers(tree: Tree) -> list[int]:
    """Of the tensors in a tree that was read from a file. ValueError when it is none."""
    if type(tree.get("tensor")) is int:
        return [tree["tensor"]]
    if "constant" in tree:
        return []
    if "dict" in tree:
        return [number for _, item in tree["dict"] for number in numbers(item)]
    for kind in ("list", "tuple", "items"):
        if isinstance(tree.get(kind), list):
            return [number for item in tree[kind] for number in numbers(item)]
    raise ValueError(f"a structure of unknown form: {list(tree)}")


def builder(tree: Tree) -> Callable[[list[torch.Tensor]], Any]:
    """A function from the tensors to the value."""
    if "tensor" in tree:
        number = tree["tensor"]
        return lambda tensors: tensors[number]
    if "constant" in tree:
        constant = tree["constant"]
        return lambda tensors: constant
    if "dict" in tree:
        parts = [(key, builder(item)) for key, item in tree["dict"]]
        return lambda tensors: {key: part(tensors) for key, part in parts}
    for name, kind in (("list", list), ("tuple", tuple)):
        if name in tree:
            items = [builder(item) for item in tree[name]]
            return lambda tensors, kind=kind: kind(item(tensors) for item in items)  # type: ignore
    items = [builder(item) for item in tree["items"]]
    make = _maker(tree)
    return lambda tensors: make([item(tensors) for item in items])


def _maker(tree: Tree) -> Callable[[list[Any]], Any]:
    """For classes of others: the class itself where the process has it, else something like it."""
    if "namedtuple" in tree:
        name, fields = tree["namedtuple"], tree["fields"]
        kind: Any = _find(name)
        if getattr(kind, "_fields", None) != tuple(fields):
            kind = _namedtuple(name.rpartition(".")[2], fields)
        return lambda items: kind(*items)
    context = tree["context"]
    node = pytree.SUPPORTED_NODES.get(_find(tree["object"]))
    if node is not None and context is not None:
        return lambda items: node.unflatten_fn(items, context)
    keys = context
    if isinstance(keys, list) and len(keys) == len(tree["items"]):
        return lambda items: dict(zip(keys, items, strict=True))
    return tuple


def _namedtuple(name: str, fields: list[str]) -> Any:
    return namedtuple(name, fields)


def _find(name: str) -> Any:
    """A class by its full name, in modules the process has imported; a folder imports none."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:split]))
        if found is not None:
            for part in parts[split:]:
                found = getattr(found, part, None)
            return found
    return None


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _plain_context(context: Any) -> Any:
    """What JSON can hold, else None."""
    if isinstance(context, _CONSTANTS):
        return context
    if isinstance(context, (list, tuple)) and all(isinstance(c, _CONSTANTS) for c in context):
        return list(context)
    return None


def _short(value: Any) -> str:
    return repr(value) if isinstance(value, _CONSTANTS) else f"a {type(value).__name__}"
