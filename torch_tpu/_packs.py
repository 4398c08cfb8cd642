"""Packs: files of compiled programs that can be shipped, so that a first step compiles nothing."""

from __future__ import annotations

import os
import warnings
from types import TracebackType

from torch_tpu import _C


def load_pack(path: str | os.PathLike[str]) -> int:
    """Takes programs from the pack before any is compiled; returns how many it holds.

    A pack fits one version of the compiler, of torch and of this package, and one kind of device;
    RuntimeError says what differs. A pack holds machine code: load only those you trust.

    >>> import torch, torch_tpu
    >>> with torch_tpu.record_pack("ops.pack") as pack:
    ...     y = torch.ones(31, device="tpu") + 1
    >>> torch_tpu.load_pack("ops.pack") == pack.programs
    True
    """
    return _C._load_pack(os.fspath(path))


class record_pack:  # noqa: N801, a function to its users
    """Writes the programs first used within the ``with`` statement into a pack, for `load_pack`.

    Programs that are already in memory are not seen, so this belongs at the start of a process;
    `torch-tpu precompile` does that for a script. Fused programs are compiled when first met, and
    their ops one by one as well, for a run that cuts the op stream elsewhere.

    >>> import torch, torch_tpu
    >>> with torch_tpu.record_pack("step.pack") as pack:
    ...     y = torch.ones(33, device="tpu") * 2
    >>> pack.programs > 0
    True
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        self.programs = 0

    def __enter__(self) -> record_pack:
        _C._start_record()
        # A program met once is worth compiling here: it will be met again, where the pack is used.
        self._when = _C._get_fused_compile()
        _C._set_fused_compile("first")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _C._set_fused_compile(self._when)
        failures: list[str] = []
        try:
            if kind is None:
                _C._fused_flush()
                _C._fused_wait()  # programs being compiled in the background belong to it
                failures = _C._compile_programs()
                self.programs = _C._write_record(self.path)
        finally:
            _C._drop_record()  # what was not written, as an error stood in the way
        if failures:
            missing = "; ".join(failures)
            warnings.warn(
                f"the pack {self.path} is without what cannot be compiled: {missing}", stacklevel=2
            )
