"""What makes the first call of a compiled function shorter: work of Dynamo's that we know to be in
vain. Nothing changes for graphs without tensors on "tpu"."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu._compile import key
from torch_tpu._replace import replace

_frozen = False


@functools.cache
def install() -> None:
    """Before the first frame is traced."""
    _keep_module_floats()
    _spare_imports()
    watch_compiles()


def _keep_module_floats() -> None:
    """With `dynamic=True` every float is symbolic. Those of modules (`eps`, `p`, `negative_slope`)
    nearly all end as a constant of an op; Dynamo sees it when the graph is done, and then traces
    the whole frame again. So their first value is taken as a constant, as it is without
    `dynamic=True` and as integers of modules always are; one that changes is symbolic from its
    second value on, by Dynamo's own rule."""
    from torch._dynamo import config
    from torch._dynamo.variables.builder import VariableBuilder

    def make(original: Any) -> Any:
        def wrap_symfloat(self: Any, *args: Any, **kwargs: Any) -> Any:
            static = config.assume_static_by_default
            if static or not (_of_module(self.source) and _on_device(self.tx)):
                return original(self, *args, **kwargs)
            with config.patch(assume_static_by_default=True):
                return original(self, *args, **kwargs)

        return wrap_symfloat

    replace(VariableBuilder, "wrap_symfloat", make)


def _of_module(source: Any) -> bool:
    kind = source.guard_source
    kind = kind() if callable(kind) else kind  # a method before torch 2.12
    return bool(kind.is_unspecialized_nn_module())


def _on_device(tx: Any) -> bool:
    """Whether a tensor on the device was met in this frame."""
    return any(
        isinstance(known.fake, torch.Tensor) and known.fake.device.type == "tpu"
        for known in tx.output.tracked_fakes
    )


def _spare_imports() -> None:
    """Two questions of Dynamo's begin with an import, and have an answer without it."""
    from torch._dynamo.variables import higher_order_ops, optimizer

    # Is it the wrapper of `local_map`? 0.07 s for DTensor's experiments; while nobody has imported
    # them, it is not.
    variable = getattr(higher_order_ops, "LocalMapWrappedHigherOrderVariable", None)
    if hasattr(variable, "should_wrap_in_hop"):
        _answer_first(variable, "should_wrap_in_hop", _never_local_map)
    # Does a gradient have a place of its own, as CUDA graphs want it? 0.6 s for all of Inductor; on
    # devices other than CUDA the answer is yes.
    if hasattr(optimizer, "_is_static_for_cudagraphs"):
        _answer_first(optimizer, "_is_static_for_cudagraphs", _static_on_device)


def _answer_first(owner: Any, name: str, known: Callable[..., bool | None]) -> None:
    def make(original: Any) -> Any:
        def ask(*args: Any, **kwargs: Any) -> Any:
            answer = known(*args, **kwargs)
            return original(*args, **kwargs) if answer is None else answer

        return ask

    replace(owner, name, make)


def _never_local_map(*_: Any, **__: Any) -> bool | None:
    imported = "torch.distributed.tensor.experimental._func_map" in sys.modules
    return None if imported else False


def _static_on_device(*args: Any, **kwargs: Any) -> bool | None:
    tensors = (*args, *kwargs.values())
    return True if all(t.device.type == "tpu" for t in tensors) else None


def watch_compiles() -> None:
    """Again after `torch._dynamo.reset`, which forgets who wanted to be told."""
    handler = torch._dynamo.callback.callback_handler
    if _freeze not in handler.start_callbacks:
        handler.register_start_callback(_freeze)
        handler.register_end_callback(_unfreeze)


def _freeze(_: Any) -> None:
    """A trace makes so many objects that Python looks for cycles among all there are, again and
    again: a tenth of the time. What was there before the trace is left out while it lasts."""
    global _frozen
    if _C._is_initialized():
        key.read_sources_ahead()
    _frozen = _C._is_initialized() and gc.isenabled() and gc.get_freeze_count() == 0
    if _frozen:
        gc.freeze()


def _unfreeze(_: Any) -> None:
    global _frozen
    if _frozen:
        _frozen = False
        gc.unfreeze()
