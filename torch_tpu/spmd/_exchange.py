"""What functional collectives lack inside a function for each device: which device this is, and
pieces of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu.spmd._collectives import define, group_size

_ops: Any = torch.ops._c10d_functional


def index(group: str, device: torch.device | str = "tpu") -> torch.Tensor:
    """Inside a function of `per_device`: which of the group's devices this one is, as a tensor."""
    size = group_size(group)
    numbers = torch.arange(size, dtype=torch.int32, device=device)
    # A partitioned program cannot ask. But of numbers that all agree on, each is sent its own.
    found = _ops.wait_tensor(_ops.reduce_scatter_tensor(numbers, "min", size, group))
    mine: torch.Tensor = found.reshape(()).to(torch.int64)
    return mine


def permute(x: torch.Tensor, to: Sequence[int], group: str) -> torch.Tensor:
    """Inside a function of `per_device`: device i of the group sends `x` to device `to[i]`, and
    gets that of another. `to=[1, 2, 3, 0]` is a ring."""
    size = group_size(group)
    if sorted(to) != list(range(size)):
        raise ValueError(f"[spmd] permute over {size} devices to {list(to)}: each gets one")
    define()
    made: torch.Tensor = torch.ops.torch_tpu_spmd.permute(x, list(to), group)
    return made


def all_to_all(x: torch.Tensor, sizes: Sequence[Sequence[int]], group: str) -> torch.Tensor:
    """Inside a function of `per_device`: an all-to-all with pieces of different sizes. The i-th
    device of the group sends its first `sizes[i][0]` rows to the first, the next `sizes[i][1]` to
    the second, and so on. Every device has the same shapes, so `x` has as many rows as the device
    that sends most, and the result as many as the one that gets most: the last rows of the others
    are not sent, or zero."""
    size = group_size(group)
    table = [[int(n) for n in row] for row in sizes]
    if len(table) != size or any(len(row) != size or min(row) < 0 for row in table):
        raise ValueError(f"[spmd] all_to_all over {size} devices with the sizes {sizes}")
    most_sent = max(map(sum, table))
    if x.dim() == 0 or x.shape[0] != most_sent:
        raise ValueError(
            f"[spmd] all_to_all of a tensor of shape {tuple(x.shape)}: the device that sends most "
            f"sends {most_sent} rows"
        )
    piece = max(map(max, table))
    most_taken = max(sum(row[j] for row in table) for j in range(size))
    send, take = _rows(table, piece, most_sent, most_taken)
    mine = index(group, x.device)
    picked = _pick(x, send, mine)
    even = [piece] * size
    got = _ops.wait_tensor(_ops.all_to_all_single(picked, even, even, group))
    return _pick(got, take, mine)


def _rows(
    table: list[list[int]], piece: int, most_sent: int, most_taken: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Per device: which rows make up its pieces, each as long as the longest; and which of what
    it gets are the result. The row after the last stands for zeros."""
    size = len(table)
    send = []
    for row in table:
        rows, start = [], 0
        for count in row:
            rows += [start + k if k < count else most_sent for k in range(piece)]
            start += count
        send.append(rows)
    take = []
    for j in range(size):
        rows = [i * piece + k for i in range(size) for k in range(table[i][j])]
        take.append(rows + [size * piece] * (most_taken - len(rows)))
    return send, take


def _pick(x: torch.Tensor, rows: list[list[int]], mine: torch.Tensor) -> torch.Tensor:
    padded = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
    table = torch.tensor(rows, dtype=torch.int64).to(x.device)
    return padded.index_select(0, table.index_select(0, mine.reshape(1)).reshape(-1))
