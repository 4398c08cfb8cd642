"""Calls that read memory they write: allowed or refused as on CPU."""

from __future__ import annotations

import pytest
import torch

OVERLAPS = {
    "add_": lambda x: x[1:].add_(x[:-1]),
    "add-same": lambda x: x[1:].add_(x[1:]),
    "add-apart": lambda x: x[:3].add_(x[3:]),
    "add-transposed": lambda x: x[:4].view(2, 2).mul_(x[:4].view(2, 2).t()),
    "add-number": lambda x: x.add_(x[2]),
    "exp-out": lambda x: torch.exp(x[:-1], out=x[1:]),
    "copy_": lambda x: x[1:].copy_(x[:-1]),
    "where-out": lambda x: torch.where(x[1:] > 2, x[:-1], x[:-1], out=x[1:]),
    "fill_": lambda x: x[1:].fill_(x[0]),
    "masked_fill_": lambda x: x.masked_fill_(x > 2, x[0]),
    "cumsum-out": lambda x: torch.cumsum(x[:-1], 0, out=x[1:]),
    "gather-out": lambda x: torch.gather(x, 0, x.long() - 1, out=x),
    "take-out": lambda x: torch.take(x[:-1], x[:-1].long() - 1, out=x[1:]),
    "scatter_": lambda x: x.scatter_(0, x.long() - 1, x),
    "index_add_": lambda x: x[1:].index_add_(0, x[:-1].long() - 1, x[:-1]),
    "index_put_": lambda x: x[1:].index_put_((x[:-1].long() - 1,), x[:-1]),
    "mask-fill": lambda x: x.index_put_((x > 2,), x[0]),
    "mask-same": lambda x: x.index_put_((x > 0,), x),
    "cat-out": lambda x: torch.cat([x[:2], x[4:]], out=x[2:]),
    "max-out": lambda x: torch.max(x[:-1], 0, out=(x[1], x.long()[1])),
    "masked_select-out": lambda x: torch.masked_select(x[:-1], x[:-1] > 2, out=x[1:4]),
    "sort-out": lambda x: torch.sort(x[:-1], out=(x[1:], x.long()[1:])),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlap(name: str) -> None:
    x = torch.arange(6.0) + 1
    y = x.to("tpu")
    message = None
    try:
        OVERLAPS[name](x)
    except RuntimeError as error:
        message = str(error)
    for _ in range(2):  # the second time there may be a program
        if message is None:
            OVERLAPS[name](y)
            torch.testing.assert_close(y.cpu(), x)
            break
        with pytest.raises(RuntimeError) as caught:
            OVERLAPS[name](y)
        assert str(caught.value) == message
    # The same shapes in memory of their own share no program with it.
    a, b = torch.ones(6, device="tpu"), torch.ones(6, device="tpu")
    a[1:].add_(b[:-1])
    with pytest.raises(RuntimeError):
        a[1:].add_(a[:-1])
