"""Options of XLA's compiler for the programs of a block. They are part of the keys of programs, in
memory and on disk: a program is never found under other options than it was compiled with."""

from __future__ import annotations

from collections.abc import Mapping

from torch_tpu import _C
from torch_tpu._blocks import Block, Settings, Switch

__all__ = ["allow_excess_precision", "custom_compiler_options"]

Option = str | bool | int | float
_OPTIONS = Settings(_C._compiler_options, _C._set_compiler_options)


class custom_compiler_options(Block):  # noqa: N801, a function to its users
    """Compiles what is called in a block, or in a function, with further options of XLA's, such as
    `xla_tpu_scoped_vmem_limit_kib`. A block inside another adds to its options.

    An option that the plugin does not know is an error of the first program that is compiled. The
    options belong to the process: other threads compile with them meanwhile. Where blocks of
    threads overlap, the options of all hold; of two values, that of the block entered last.
    `torch_tpu.aot` compiles in another process, and refuses to where options are set.

    >>> import torch, torch_tpu
    >>> with torch_tpu.compiler.custom_compiler_options({"xla_backend_optimization_level": 1}):
    ...     y = torch.ones(4, device="tpu").exp().sum().item()
    """

    settings = _OPTIONS

    def __init__(self, options: Mapping[str, Option]) -> None:
        for name, value in options.items():
            if not isinstance(name, str) or not isinstance(value, (str, bool, int, float)):
                raise TypeError(
                    f"[custom_compiler_options] expected names with a str, bool, int or float, got "
                    f"{name!r}: {value!r}."
                )
        super().__init__(options)

    def __enter__(self) -> custom_compiler_options:
        self._enter()
        return self


_EXCESS = "xla_allow_excess_precision"


def _allows_excess_precision() -> bool:
    """What programs are compiled with now: as set, else by the platform."""
    set_to = _C._compiler_options().get(_EXCESS)
    if set_to is not None:
        return bool(set_to)
    # The owner of this is Runtime::Runtime (csrc/pjrt/runtime.cpp), which sets it for XLA:CUDA.
    return _C._device_properties(0)["platform_kind"] != "cuda"


class allow_excess_precision(Switch):  # noqa: N801, as torch.set_grad_enabled
    """Whether XLA may keep more digits than a dtype has, as where a bfloat16 result is added up
    further: faster, but rounded otherwise than by PyTorch. Like `torch.set_grad_enabled` it holds
    from the call on, or for a block.

    >>> import torch
    >>> with torch.tpu.allow_excess_precision(False):
    ...     y = torch.ones(4, device="tpu", dtype=torch.bfloat16).exp().sum()
    """

    settings = _OPTIONS

    def __init__(self, allow: bool = True) -> None:
        super().__init__({_EXCESS: bool(allow)})
