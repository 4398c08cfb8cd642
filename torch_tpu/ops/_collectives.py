"""Collectives of torch.distributed by name of a dimension, and one with ragged parts. All have
gradients, and are PyTorch's functional collectives inside: torch.compile sees them as such."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def _functional(name: str) -> Any:
    """One of PyTorch's, by its name since torch 2.13, or the one that it had before."""
    import torch.distributed._functional_collectives as functional

    before = name.replace("_single", "_tensor")
    return getattr(functional, name, None) or getattr(functional, before)


def _group(group: Any) -> Any:
    if group is None and not dist.is_initialized():
        raise RuntimeError(
            "[torch_tpu.ops] there is no group of ranks: call "
            'torch.distributed.init_process_group("tpu") first, or pass group=.'
        )
    return dist.group.WORLD if group is None else group


def all_gather_dim(tensor: torch.Tensor, dim: int = 0, group: Any = None) -> torch.Tensor:
    """All ranks' tensors, one after the other along a dimension."""
    where = _group(group)
    gathered = _functional("all_gather_single_autograd")(tensor, dim % tensor.dim(), where)
    return _functional("wait_tensor")(gathered)


def reduce_scatter_dim(
    tensor: torch.Tensor, dim: int = 0, op: str = "sum", group: Any = None
) -> torch.Tensor:
    """The sum of all ranks' tensors, of which each keeps its part along a dimension. Of other
    reductions ("avg", "max", "min", "product") only the sum and the average have a gradient."""
    where = _group(group)
    wait = _functional("wait_tensor")
    size = dist.get_world_size(where)
    if tensor.shape[dim] % size:
        raise ValueError(
            f"[reduce_scatter_dim] dimension {dim} of {list(tensor.shape)} cannot be divided among "
            f"{size} ranks"
        )
    at = dim % tensor.dim()
    if op not in ("sum", "avg"):
        return wait(_functional("reduce_scatter_single")(tensor, op, at, where))
    summed = wait(_functional("reduce_scatter_single_autograd")(tensor, "sum", at, where))
    return summed / size if op == "avg" else summed


def ragged_all_to_all(
    operand: torch.Tensor,
    output: torch.Tensor,
    input_offsets: torch.Tensor,
    send_sizes: torch.Tensor,
    output_offsets: torch.Tensor,
    recv_sizes: torch.Tensor,
    group: Any = None,
) -> torch.Tensor:
    """Sends rows operand[input_offsets[r] : + send_sizes[r]] to rank r, which has them at
    output_offsets[r] of its result; what no rank writes there is `output`'s. As
    jax.lax.ragged_all_to_all: recv_sizes[r] is how many rows come from rank r. The sizes are read
    by the host; the gradients of operand and output go the same ways back."""
    where = _group(group)
    size = dist.get_world_size(where)
    numbers = torch.stack([input_offsets, send_sizes, output_offsets, recv_sizes]).to(torch.int64)
    if numbers.shape != (4, size):
        raise ValueError(f"[ragged_all_to_all] expected a number for each of {size} ranks")
    # Where the parts belong is known by who sends them.
    places = torch.empty(size, dtype=torch.int64, device=numbers.device)
    dist.all_to_all_single(places, numbers[2].contiguous(), group=where)
    starts, sends, _, receives = numbers.tolist()
    parts = [operand[at : at + count] for at, count in zip(starts, sends, strict=True)]
    packed = torch.cat(parts) if sum(sends) else operand[:0]
    exchanged = _functional("all_to_all_single_autograd")(packed, receives, sends, where)
    came = _functional("wait_tensor")(exchanged)
    result = output.clone()
    for part, at in zip(came.split(receives), places.tolist(), strict=True):
        if len(part):
            result = _written(result, part, at)
    return result


def _written(whole: torch.Tensor, part: torch.Tensor, at: int) -> torch.Tensor:
    if at + len(part) > len(whole):
        raise ValueError(
            f"[ragged_all_to_all] {len(part)} rows at {at} do not fit into {len(whole)}"
        )
    return torch.slice_scatter(whole, part, 0, at, at + len(part))


def send(tensor: torch.Tensor, dst: int, group: Any = None, tag: int = 0) -> None:
    """torch.distributed.send."""
    dist.send(tensor, dst, group=_group(group), tag=tag)


def recv(
    tensor: torch.Tensor, src: int | None = None, group: Any = None, tag: int = 0
) -> torch.Tensor:
    """torch.distributed.recv into this tensor, which is returned."""
    dist.recv(tensor, src, group=_group(group), tag=tag)
    return tensor
