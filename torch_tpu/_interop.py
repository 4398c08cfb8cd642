"""Where torch's own Python code does not reach a renamed device: printing, autocast, DLPack, files,
sending tensors to other processes. Other devices go through the wrappers unchanged."""

from __future__ import annotations

import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from torch_tpu import (
    _dlpack,
    _fake_kernels,
    _flex,
    _nested,
    _safetensors_package,
    _serialization,
)
from torch_tpu._replace import replace


def install() -> None:
    """Wraps the torch functions; called once."""
    _autocast_to_bfloat16()
    _print_from_host()
    _printing_may_fail()
    _no_sharing_between_processes()
    _dlpack.install()
    _serialization.install()
    _safetensors_package.install()
    _nested.install()
    _flex.install()
    _fake_kernels.install()


def _autocast_to_bfloat16() -> None:
    """The default dtype is kept per thread and starts as float16, so each thread sets it once."""
    seen = threading.local()

    def make(original: Any) -> Any:
        def init(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
            if device_type == "tpu" and not hasattr(seen, "here"):
                seen.here = True
                torch.set_autocast_dtype("tpu", torch.bfloat16)
            original(self, device_type, *args, **kwargs)

        return init

    replace(torch.autocast, "__init__", make)
    seen.here = True
    torch.set_autocast_dtype("tpu", torch.bfloat16)


def _print_from_host() -> None:
    """One transfer instead of dozens of small programs. `device='tpu:0'` is added by the caller."""

    def make(original: Any) -> Any:
        def tensor_str(self: torch.Tensor, indent: int) -> str:
            if self.device.type == "tpu":
                self = (self.clone() if self._is_zerotensor() else self).cpu()
            return original(self, indent)

        return tensor_str

    replace(torch._tensor_str, "_tensor_str", make)


def _printing_may_fail() -> None:
    """While torch prints, a local variable of `_str` keeps torch.func's transforms off. An error
    takes that variable along in its traceback, and vmap in vmap would fail ("Cannot access storage
    of BatchedTensorImpl") in this thread until the error is freed. Errors of a device show when its
    values are read, so printing raises here where it does not on the CPU."""

    def make(original: Any) -> Any:
        def text(*args: Any, **kwargs: Any) -> str:
            try:
                return str(original(*args, **kwargs))
            except BaseException as error:
                trace = error.__traceback__
                while trace is not None:
                    if trace.tb_frame.f_code is original.__code__:
                        trace.tb_frame.clear()
                    trace = trace.tb_next
                raise

        return text

    replace(torch._tensor_str, "_str", make)


def _no_sharing_between_processes() -> None:
    from torch.multiprocessing import reductions

    def make(original: Any) -> Any:
        def reduce(*args: Any, **kwargs: Any) -> Any:
            if any(value.device.type == "tpu" for value in (*args, *kwargs.values())):
                raise RuntimeError(
                    "Cannot send a tpu tensor to another process: device memory is not shared "
                    "between processes. Send tensor.cpu(), and move it with .to('tpu') there."
                )
            return original(*args, **kwargs)

        return reduce

    replace(reductions, "reduce_tensor", make)
    replace(reductions, "reduce_storage", make)
    ForkingPickler.register(torch.Tensor, reductions.reduce_tensor)
    ForkingPickler.register(torch.nn.Parameter, reductions.reduce_tensor)
    ForkingPickler.register(torch.UntypedStorage, reductions.reduce_storage)
