"""Blocks that change settings of the whole process and put them back. Blocks of several threads may
overlap in any order: each takes back what is its own, and after the last all is as the first found
it."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


class Opened:
    """A block that is open: what would hold without it, by name; None where nothing would."""

    def __init__(self, before: dict[str, Any]) -> None:
        self.before = before


class Settings:
    """Those of a kind, by name, with the blocks that have changed them. `put` may raise the error
    of a call that was made before, having put them or not; that error it raises once."""

    def __init__(
        self, get: Callable[[], Mapping[str, Any]], put: Callable[[dict[str, Any]], None]
    ) -> None:
        self._get = get
        self._put = put
        self._open: list[Opened] = []  # in the order of entry: a later one holds
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._unlock)  # another thread may have held it

    def _unlock(self) -> None:
        self._lock = threading.RLock()

    def enter(self, values: Mapping[str, Any]) -> Opened:
        """These hold until `leave`; not at all where `put` raises."""
        with self._lock:
            now = self._get()
            opened = Opened({name: now.get(name) for name in values})
            self._open.append(opened)
            try:
                self._put({**now, **values})
            except BaseException:
                self.leave(opened)
                raise
            return opened

    def leave(self, opened: Opened) -> None:
        """What a later block has changed remains, and that block leaves what this one found."""
        with self._lock:
            place = self._open.index(opened)
            del self._open[place]
            now = dict(self._get())
            for name, before in opened.before.items():
                above = next((o for o in self._open[place:] if name in o.before), None)
                if above is not None:
                    above.before[name] = before
                elif before is None:
                    now.pop(name, None)
                else:
                    now[name] = before
            try:
                self._put(now)
            except BaseException:  # of a call before, which is told once
                self._put(now)
                raise

    def keep(self, opened: Opened) -> None:
        """It was no block after all: its settings stay, as if they had been set plainly."""
        with self._lock:
            self._open.remove(opened)


class Block(contextlib.ContextDecorator):
    """A block, or a function, with settings of its own; may be entered again while it is open."""

    settings: ClassVar[Settings]

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._opened: list[Opened] = []

    def _recreate_cm(self) -> Self:
        """Of each call of a decorated function, which several threads may be in."""
        again = copy.copy(self)
        again._opened = []
        return again

    def _enter(self) -> None:
        self._opened.append(self.settings.enter(self._values))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.settings.leave(self._opened.pop())


class Switch(Block):
    """A block that holds from the call on, as torch.set_grad_enabled does: as if it had been set
    plainly, unless it turns out to be for a with statement or a function."""

    _set_plainly = False  # of the class too: Dynamo makes objects that are never initialized

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._enter()
        self._set_plainly = True

    def _undo(self) -> None:
        if self._set_plainly:
            self._set_plainly = False
            self.settings.leave(self._opened.pop())

    def __del__(self) -> None:
        if self._set_plainly:
            self.settings.keep(self._opened.pop())

    def __call__(self, function: _F) -> _F:
        self._undo()  # as a decorator it holds within the function alone
        return super().__call__(function)

    def __enter__(self) -> Self:
        self._undo()
        self._enter()
        return self
