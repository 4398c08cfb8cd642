"""What DTensor must know of this device: ops that have other names elsewhere.

It takes over a second to import, so its module is completed when somebody else imports it."""

from __future__ import annotations

import sys
from typing import Any

import torch

from torch_tpu._on_import import on_import
from torch_tpu._replace import replace, temporarily

_MODULE = "torch.distributed.tensor._dispatch"


def install() -> None:
    """Completes DTensor's dispatcher now, or once it is imported."""
    on_import(_MODULE, _complete)


def _complete(dispatch: Any) -> None:
    handlers = {
        torch.ops.aten.linear_backward.default: _linear_backward,
        _ATTENTION: _attention,
        _ATTENTION_BACKWARD: _attention_backward,
    }

    def make(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self._custom_op_handlers.update(handlers)

        return init

    replace(dispatch.OpDispatcher, "__init__", make)
    tensor: Any = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if tensor is not None:  # it was there before us
        tensor._op_dispatcher._custom_op_handlers.update(handlers)


def _linear_backward(_op: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """`linear` has a backward of its own on this device. DTensor knows how the ops are sharded that
    it is made of elsewhere."""
    x, grad, weight, wanted = args
    rows = grad.reshape(-1, grad.shape[-1])
    return (
        grad.matmul(weight) if wanted[0] else None,
        rows.t().mm(x.reshape(-1, x.shape[-1])) if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )


# Attention: batch and heads may be sharded as they like. A sharded sequence is attended to in a
# ring, with the templates that PyTorch's context parallel has for CUDA's kernels.
_ATTENTION = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
_ATTENTION_BACKWARD = (
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default
)
_BATCH, _HEADS, _SEQUENCE = 0, 1, 2


def _layout(query: Any, tensors: list[Any], bias: Any) -> tuple[tuple[Any, ...], int | None]:
    """Placements for all tensors, and the mesh dim to go round, if any."""
    from torch.distributed.tensor import DTensor, Replicate

    allowed = all(
        p.is_replicate() or (p.is_shard() and p.dim <= _SEQUENCE) for p in query.placements
    )
    rings = [i for i, p in enumerate(query.placements) if p.is_shard(_SEQUENCE)]
    alike = all(isinstance(t, DTensor) and t.placements == query.placements for t in tensors)
    if not allowed or bias is not None or len(rings) > 1 or (rings and not alike):
        return (Replicate(),) * query.device_mesh.ndim, None
    return query.placements, rings[0] if rings else None


def _local(tensor: Any, placements: tuple[Any, ...]) -> Any:
    if not hasattr(tensor, "redistribute"):
        return tensor
    return tensor.redistribute(placements=placements).to_local()


def _ring(mesh: Any, dim: int, causal: bool, run: Any) -> Any:
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    # Balanced or not is a matter of order, which makes no difference without a mask.
    balance = ring._cp_options.enable_load_balance and causal
    with temporarily(ring._cp_options, "enable_load_balance", balance):
        return run(ring, mesh.get_group(dim))


def _wrap(local: torch.Tensor, like: Any, placements: tuple[Any, ...], shape: Any) -> Any:
    from torch.distributed.tensor import DTensor

    size = torch.Size(shape)
    strides = torch.empty(size, device="meta").stride()
    return DTensor.from_local(
        local.contiguous(),
        like.device_mesh,
        placements,
        run_check=False,
        shape=size,
        stride=strides,
    )


def _attention(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("query", "key", "value", "attn_bias", "dropout_p", "is_causal", "return_debug_mask")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key, value = given.pop("query"), given.pop("key"), given.pop("value")
    bias = given.pop("attn_bias", None)
    causal = given.pop("is_causal", False)
    given.pop("return_debug_mask", None)
    placements, ring_dim = _layout(query, [key, value], bias)
    q, k, v = (_local(t, placements) for t in (query, key, value))
    if ring_dim is None:
        bias = _local(bias, placements)
        out, lse, *rest = op(q, k, v, bias, is_causal=causal, **given)
    else:
        out, lse, *rest = _ring(
            query.device_mesh,
            ring_dim,
            causal,
            lambda ring, group: ring._templated_ring_attention(
                group, _SEQUENCE, op, query=q, key=k, value=v, is_causal=causal, **given
            ),
        )
    shape = (*query.shape[:3], value.shape[-1])
    return (
        _wrap(out, query, placements, shape),
        _wrap(lse, query, placements, query.shape[:3]),
        *rest,
    )


def _attention_backward(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    grad, query, key, value, bias, wanted, out, lse, cum_q, cum_k, max_q, max_k = args[:12]
    dropout, causal, seed, offset = args[12:16]
    placements, ring_dim = _layout(query, [key, value], bias)
    local = [_local(t, placements) for t in (grad, query, key, value, out, lse)]
    g, q, k, v, o, s = local
    extra: dict[str, Any] = {
        "attn_bias": _local(bias, placements),
        "grad_input_mask": wanted,
        "cum_seq_q": cum_q,
        "cum_seq_k": cum_k,
        "max_q": max_q,
        "max_k": max_k,
        "dropout_p": dropout,
        "philox_seed": seed,
        "philox_offset": offset,
        **kwargs,
    }
    if ring_dim is None:
        grads = op(
            grad_out=g, query=q, key=k, value=v, out=o, logsumexp=s, is_causal=causal, **extra
        )
    else:
        grads = _ring(
            query.device_mesh,
            ring_dim,
            causal,
            lambda ring, group: ring._templated_ring_attention_backward(
                group,
                _SEQUENCE,
                op,
                grad_out=g,
                grad_out_name="grad_out",
                query=q,
                key=k,
                value=v,
                out=o,
                logsumexp=s,
                is_causal=causal,
                **extra,
            ),
        )
    wrapped = [
        _wrap(part, like, placements, like.shape) if part is not None else None
        for part, like in zip(grads[:3], (query, key, value), strict=True)
    ]
    return (*wrapped, grads[3] if len(grads) > 3 else None)
