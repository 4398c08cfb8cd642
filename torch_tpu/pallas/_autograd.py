"""The autograd function of a kernel, for calls that need a gradient.

torch.library has one, too, but torch.func refuses it. This one records a single level: a dispatcher
kernel is called once per level of torch.func's transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import _C
from torch._library.autograd import supports_tensorlist
from torch.autograd.function import _SingleLevelFunction


def differentiated(
    op: Any,
    bind: Callable[[Sequence[Any], dict[str, Any]], list[Any]],
    save: Callable[[Any, Sequence[Any], Any], None],
    backward: Callable[..., Any],
    has_lists: bool,
) -> Callable[..., Any]:
    """A function (keys, *args, **kwargs) that calls the op below autograd and records it."""

    def forward(ctx: Any, keys: Any, keywords: dict[str, Any], *args: Any) -> Any:
        with _C._AutoDispatchBelowAutograd():
            result = op.redispatch(keys & _C._after_autograd_keyset, *args, **keywords)
        save(ctx, bind(args, keywords), result)
        return result

    def gradients(ctx: Any, *grads: Any) -> Any:
        return (None, None, *backward(ctx, *grads))

    body = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
    made: Any = type(f"{op._opname}_backward", (_SingleLevelFunction,), body)
    if has_lists:
        made = supports_tensorlist(made)

    def call(keys: Any, *args: Any, **keywords: Any) -> Any:
        if not _C._are_functorch_transforms_active():
            return made.apply(keys, keywords, *args)
        from torch._functorch.utils import enable_single_level_autograd_function

        with enable_single_level_autograd_function():
            return made.apply(keys, keywords, *args)

    return call
