"""What PyTorch's cache takes time for when it computes the key of a graph, and need not for ours:
it imports all of Inductor, 0.5 s, and reads every source of torch's, 0.2 s."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

from torch._functorch._aot_autograd import autograd_cache
from torch._inductor import codecache

from torch_tpu import _replace

_WRAPPER = "torch._inductor.codegen.wrapper"
_ours = threading.local()


@functools.cache
def install() -> None:
    """Before the first key."""

    def make(original: Any) -> Any:
        def register(*args: Any, **kwargs: Any) -> Any:
            if getattr(_ours, "active", False):
                return None
            return original(*args, **kwargs)

        return register

    _replace.replace(codecache, "init_backend_registration", make)


@contextlib.contextmanager
def without_inductor() -> Iterator[None]:
    """Keys within ask neither which devices Inductor has code for nor how it wraps kernels of
    Triton's: a graph with tensors on "tpu" has none."""
    install()
    _ours.active = True
    stand_in = None
    if _WRAPPER not in sys.modules:
        stand_in = types.ModuleType(_WRAPPER)
        stand_in.user_defined_triton_kernel_transitive_closure_source_code = _no_kernel  # type: ignore[attr-defined]
        sys.modules[_WRAPPER] = stand_in
    try:
        yield
    finally:
        _ours.active = False
        if sys.modules.get(_WRAPPER) is stand_in and stand_in is not None:
            del sys.modules[_WRAPPER]


def _no_kernel(kernel: Any) -> str:
    raise codecache.BypassFxGraphCache(f"a kernel of Triton's, {kernel}")


@functools.cache
def read_sources_ahead() -> None:
    """The digest of torch's sources is part of every key: computed while Dynamo traces."""
    prefetch = getattr(codecache.torch_key, "prefetch", None)  # since torch 2.13
    if prefetch is not None and autograd_cache.should_use_local_autograd_cache():
        prefetch()
