"""The one place that puts something of ours where another library has its own.

A replacement must take every argument that the original takes, or a call that works without this
package fails with it. So it names no more parameters than it needs and passes the rest on, or has
the very signature of the original. `mismatch` says where it does neither; the tests ask that of
every replacement there is, and see to it that none is made elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_Kind = inspect._ParameterKind


@dataclass(frozen=True)
class Replacement:
    """What stands where now, and what stood there before."""

    owner: Any  # a module, a class or an object
    name: str
    original: Any
    replacement: Any

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__name__', self.owner)}.{self.name}"

    def mismatch(self) -> str:
        """How its parameters differ from the original's; "" if a caller cannot tell."""
        own = list(inspect.signature(self.replacement, follow_wrapped=False).parameters.values())
        try:
            theirs = inspect.signature(self.original)
        except (TypeError, ValueError):  # written in C
            return _passes_all_on(own)
        if inspect.signature(self.replacement) != theirs:
            return f"shows as {inspect.signature(self.replacement)}, the original as {theirs}"
        return _compare(own, list(theirs.parameters.values()))


_made: list[Replacement] = []
_signature = functools.cache(inspect.signature)


def made() -> tuple[Replacement, ...]:
    """All replacements of this process so far."""
    return tuple(_made)


def replace(owner: Any, name: str, make: Callable[[Any], Any], *aliases: Any) -> None:
    """Puts `make(original)` in the place of `owner.name`, and of the same name in `aliases`: other
    modules that have the same function. Name, documentation and signature remain the original's.
    Of a property, it is the getter."""
    if any(one.owner is owner and one.name == name for one in _made):
        return  # a second attempt to register, after one that failed
    found = getattr(owner, name)
    original: Any = found.fget if isinstance(found, property) else found
    replacement = make(original)
    if not isinstance(replacement, type):  # a class has its own name and documentation
        replacement = functools.wraps(original)(replacement)
    put: Any = replacement
    if isinstance(found, property):
        put = found.getter(replacement)
    elif isinstance(inspect.getattr_static(owner, name, None), staticmethod):
        put = staticmethod(replacement)
    for place in (owner, *aliases):
        if place is not owner and getattr(place, name, None) is not found:
            continue  # somebody else has replaced it there
        setattr(place, name, put)
        _made.append(Replacement(place, name, original, replacement))


def holders(name: str, value: Any) -> list[Any]:
    """The modules of this process that have this object under this name: `from x import name`."""
    modules = list(sys.modules.values())
    return [module for module in modules if getattr(module, "__dict__", {}).get(name) is value]


def add(owner: Any, name: str, value: Any) -> None:
    """Gives another library's object an attribute that it has not."""
    if hasattr(owner, name):
        raise AssertionError(f"{owner} has an attribute {name!r}: replace it")
    setattr(owner, name, value)


def become(owner: Any, kind: type) -> None:
    """Makes another library's object one of a class that is derived from its own, or back."""
    owner.__class__ = kind


@contextlib.contextmanager
def temporarily(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another library's setting has this value within the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def arguments(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the original's names, defaults included; empty where the call does
    not fit, which the original then says in its own words."""
    try:
        bound = _signature(original).bind(*args, **kwargs)
    except TypeError:
        return {}
    bound.apply_defaults()
    return bound.arguments


def with_argument(
    original: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments with another value for one of them, by place if it was given by place."""
    place = list(_signature(original).parameters).index(name)
    if place < len(args):
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, name: value}


def _passes_all_on(own: list[inspect.Parameter]) -> str:
    kinds = [p.kind for p in own]
    if kinds[-2:] == [_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD] and len(own) <= 3:
        return ""
    return "the original shows no signature: take (*args, **kwargs), after self at most"


def _compare(own: list[inspect.Parameter], theirs: list[inspect.Parameter]) -> str:
    swallows = {p.kind for p in own} & {_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD}
    named = [p for p in own if p.kind not in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD)]
    by_name = {p.name: p for p in theirs}
    for place, parameter in enumerate(named):
        like = by_name.get(parameter.name)
        if like is None:
            return f"has a parameter {parameter.name!r} that the original has not"
        if like.kind is not parameter.kind:
            kind, wanted = parameter.kind.description, like.kind.description
            return f"{parameter.name!r} is {kind}, not {wanted}"
        if like.default is not parameter.default and like.default != parameter.default:
            return f"{parameter.name!r} is {parameter.default!r} unless given, not {like.default!r}"
        if parameter.kind is not _Kind.KEYWORD_ONLY and theirs[place].name != parameter.name:
            return f"{parameter.name!r} is number {place} there, the original's another"
    taken = {p.name for p in named}
    for parameter in theirs:
        by_place = parameter.kind not in (_Kind.KEYWORD_ONLY, _Kind.VAR_KEYWORD)
        by_word = parameter.kind not in (_Kind.POSITIONAL_ONLY, _Kind.VAR_POSITIONAL)
        if parameter.name in taken:
            continue
        if by_place and _Kind.VAR_POSITIONAL not in swallows:
            return f"lacks {parameter.name!r}"
        if by_word and _Kind.VAR_KEYWORD not in swallows:
            return f"lacks {parameter.name!r} by name"
    return ""
