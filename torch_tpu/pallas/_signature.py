"""From the signature of a JAX function to the schema of a PyTorch op. Knows neither JAX nor ops."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

_NONE = inspect.Parameter.empty

# How an annotation is spelled, without module names and spaces -> the schema's type.
_SCALARS = {"int": "int", "float": "float", "bool": "bool", "str": "str"}
_ARRAYS = ("Array", "ndarray", "ArrayLike", "Tensor", "Any")


@dataclass(frozen=True)
class Parameter:
    """One argument of a kernel."""

    name: str
    type: str  # of the schema, without "?" and "(a!)"
    optional: bool = False
    default: Any = _NONE
    keyword_only: bool = False
    traced: bool = False  # a number that is a value of the program
    written: bool = False

    @property
    def has_default(self) -> bool:
        return self.default is not _NONE

    @property
    def is_tensor(self) -> bool:
        return self.type == "Tensor"

    @property
    def is_tensor_list(self) -> bool:
        return self.type in ("Tensor[]", "Tensor?[]")

    def text(self, alias: str) -> str:
        kind = self.type
        if self.written:
            kind = kind.replace("Tensor", f"Tensor({alias}!)")
        kind += "?" if self.optional else ""
        default = f"={_default_text(self.default)}" if self.has_default else ""
        return f"{kind} {self.name}{default}"


def _default_text(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_default_text(item) for item in value) + "]"
    return repr(value)


def _spelled(annotation: Any) -> str:
    """`jax.Array | None` and `typing.Optional[jax.Array]` as "Array?", `list[int]` as "int[]"."""
    text = annotation if isinstance(annotation, str) else None
    if text is None:
        plain = isinstance(annotation, type) and not hasattr(annotation, "__args__")
        text = annotation.__name__ if plain else str(annotation)
    text = re.sub(r"<class '([^']*)'>", r"\1", text).replace(" ", "")
    text = re.sub(r"[A-Za-z_][A-Za-z_0-9]*\.", "", text.replace(",...", ""))
    optional = False
    if match := re.fullmatch(r"Optional\[(.*)\]", text):
        text, optional = match[1], True
    for pattern in (r"(.*)\|None", r"None\|(.*)"):
        if match := re.fullmatch(pattern, text):
            text, optional = match[1], True
    if match := re.fullmatch(r"(?:list|List|Sequence|tuple|Tuple)\[(.*)\]", text):
        items = match[1].split(",")
        text = f"{items[0]}[]" if len(set(items)) == 1 else text
    return text + ("?" if optional else "")


def _type_of_annotation(annotation: Any) -> tuple[str, bool] | None:
    text = _spelled(annotation)
    optional = text.endswith("?")
    text = text.removesuffix("?")
    base = text.removesuffix("[]")
    suffix = text[len(base) :]
    if base in _ARRAYS:
        return "Tensor" + suffix, optional
    if base in _SCALARS:
        return _SCALARS[base] + suffix, optional
    return None


def _type_of_default(value: Any) -> tuple[str, bool] | None:
    if value is None:
        return "Tensor", True
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind.__name__, False
    if isinstance(value, (list, tuple)) and value:
        inner = _type_of_default(value[0])
        return (inner[0] + "[]", False) if inner else None
    return None


def parameters_of(
    function: Callable[..., Any],
    name: str,
    traced: Collection[str],
    static: Collection[str],
) -> list[Parameter]:
    """The arguments of a function, by their annotations and defaults; without either a tensor."""
    out = []
    bound = function.keywords if isinstance(function, functools.partial) else {}
    for given in inspect.signature(function).parameters.values():
        if given.name in bound:
            continue
        if given.kind in (given.VAR_POSITIONAL, given.VAR_KEYWORD):
            raise TypeError(
                f"[{name}] '{given}' has no place in an operator's schema. Name each argument; for "
                f"many arrays take one of type list[jax.Array]."
            )
        found: tuple[str, bool] | None = ("Tensor", False)
        if given.annotation is not _NONE:
            found = _type_of_annotation(given.annotation)
        elif given.default is not _NONE:
            found = _type_of_default(given.default)
        elif given.name in static:
            found = None
        if found is None or (given.name in static and found[0].startswith("Tensor")):
            raise TypeError(
                f"[{name}] the type of argument '{given.name}' is not known. Annotate it as "
                f"jax.Array, list[jax.Array], int, float, bool, str or a list of those (or one of "
                f"them | None)."
            )
        kind, optional = found
        if given.default is None:
            optional = True
        out.append(
            Parameter(
                given.name,
                kind,
                optional,
                given.default,
                given.kind == given.KEYWORD_ONLY,
                traced=given.name in traced,
            )
        )
    known = {p.name: p for p in out}
    for wanted in (*traced, *static):
        if wanted not in known:
            raise TypeError(f"[{name}] it has no argument '{wanted}'; it has {', '.join(known)}.")
    for wanted in traced:
        if known[wanted].type != "float":
            raise TypeError(
                f"[{name}] '{wanted}' is of type {known[wanted].type}; only a float can be traced. "
                f"Pass other values as tensors."
            )
    return out


def mark_written(
    parameters: Sequence[Parameter], names: Collection[str], op: str
) -> list[Parameter]:
    """The parameters, with those of these names written by the op."""
    tensors = [p.name for p in parameters if p.is_tensor and not p.optional]
    for name in names:
        if name not in tensors:
            raise TypeError(
                f"[{op}] '{name}' cannot be donated; its tensors are {', '.join(tensors)}."
            )
    return [replace(p, written=True) if p.name in names else p for p in parameters]


def schema_text(name: str, parameters: Sequence[Parameter], num_results: int | None) -> str:
    """`name(Tensor x, float eps=1e-06) -> Tensor`; None stands for a list of any length."""
    parts = []
    starred = False
    for i, parameter in enumerate(parameters):
        if parameter.keyword_only and not starred:
            parts.append("*")
            starred = True
        parts.append(parameter.text(f"a{i}"))
    if num_results is None:
        results = "Tensor[]"
    elif num_results == 1:
        results = "Tensor"
    else:
        results = "(" + ", ".join(["Tensor"] * num_results) + ")"
    return f"{name}({', '.join(parts)}) -> {results}"
