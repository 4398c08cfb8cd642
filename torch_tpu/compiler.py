"""Options of XLA's compiler for the programs of a block. They are part of the keys of programs, in
memory and on disk: a program is never found under other options than it was compiled with."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType

from torch_tpu import _C

__all__ = ["allow_excess_precision", "custom_compiler_options"]

Option = str | bool | int | float


class custom_compiler_options(contextlib.ContextDecorator):  # noqa: N801, a function to its users
    """Compiles what is called in a block, or in a function, with further options of XLA's, such as
    `xla_tpu_scoped_vmem_limit_kib`. A block inside another adds to its options.

    An option that the plugin does not know is an error of the first program that is compiled. The
    options belong to the process: other threads compile with them meanwhile.

    >>> import torch, torch_tpu
    >>> with torch_tpu.compiler.custom_compiler_options({"xla_backend_optimization_level": 1}):
    ...     y = torch.ones(4, device="tpu").exp().sum().item()
    """

    def __init__(self, options: Mapping[str, Option]) -> None:
        for name, value in options.items():
            if not isinstance(name, str) or not isinstance(value, (str, bool, int, float)):
                raise TypeError(
                    f"[custom_compiler_options] expected names with a str, bool, int or float, got "
                    f"{name!r}: {value!r}."
                )
        self._options = dict(options)
        self._previous: list[dict[str, Option]] = []

    def __enter__(self) -> custom_compiler_options:
        before = _C._compiler_options()
        _C._set_compiler_options({**before, **self._options})
        self._previous.append(before)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _C._set_compiler_options(self._previous.pop())


_EXCESS = "xla_allow_excess_precision"


def _allows_excess_precision() -> bool:
    """What programs are compiled with now: as set, else by the platform (csrc/pjrt/runtime.cpp)."""
    set_to = _C._compiler_options().get(_EXCESS)
    if set_to is not None:
        return bool(set_to)
    return _C._device_properties(0)["platform_kind"] != "cuda"


class allow_excess_precision(contextlib.ContextDecorator):  # noqa: N801, as torch.set_grad_enabled
    """Whether XLA may keep more digits than a dtype has, as where a bfloat16 result is added up
    further: faster, but rounded otherwise than by PyTorch. Like `torch.set_grad_enabled` it holds
    from the call on, or for a block.

    >>> import torch
    >>> with torch.tpu.allow_excess_precision(False):
    ...     y = torch.ones(4, device="tpu", dtype=torch.bfloat16).exp().sum()
    """

    def __init__(self, allow: bool = True) -> None:
        self._allow = bool(allow)
        self._previous = _C._compiler_options()
        self._set()

    def _set(self) -> None:
        _C._set_compiler_options({**_C._compiler_options(), _EXCESS: self._allow})

    def __call__(self, function):  # type: ignore[no-untyped-def]
        self.__exit__(None, None, None)  # as a decorator it holds within the function alone
        return super().__call__(function)

    def __enter__(self) -> allow_excess_precision:
        self._set()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        options = {k: v for k, v in _C._compiler_options().items() if k != _EXCESS}
        if _EXCESS in self._previous:
            options[_EXCESS] = self._previous[_EXCESS]
        _C._set_compiler_options(options)
