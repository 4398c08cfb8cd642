"""flex_attention on the device: the caller's score and mask functions, eager and compiled, against
attention written out in float64 on the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

LENGTH, HEADS, WIDTH = 48, 2, 16


def causal(
    batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor
) -> torch.Tensor:
    return q >= k


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, HEADS, LENGTH, WIDTH) for _ in range(3)]


def expected(slope: torch.Tensor) -> list[torch.Tensor]:
    """Result and gradients, in float64."""
    q, k, v = (x.double().requires_grad_() for x in inputs())
    at = torch.arange(LENGTH)
    distance = (at[:, None] - at[None, :]).double()
    scores = q @ k.mT / math.sqrt(WIDTH) + slope.double()[:, None, None] * distance
    out = scores.masked_fill(distance < 0, -math.inf).softmax(-1) @ v
    out.square().sum().backward()
    grads = [x.grad for x in (q, k, v) if x.grad is not None]
    assert len(grads) == 3
    return [out.detach(), *grads]


@pytest.mark.parametrize("compiled", [False, True])
def test_score_and_mask(compiled: bool) -> None:
    slope = torch.tensor([0.0, 0.25])
    on_device = slope.to("tpu")

    def lean(
        s: torch.Tensor, b: object, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor
    ) -> torch.Tensor:
        return s + on_device[h] * (i - j)

    q, k, v = (x.to("tpu").requires_grad_() for x in inputs())
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device="tpu")
    options = {"fallback": "error"}  # one program, not op by op
    attend = (
        torch.compile(flex_attention, backend="tpu", fullgraph=True, options=options)
        if compiled
        else flex_attention
    )
    out = attend(q, k, v, score_mod=lean, block_mask=mask)
    out.square().sum().backward()
    got = [out.detach(), q.grad, k.grad, v.grad]
    for mine, theirs in zip(got, expected(slope), strict=True):
        assert mine is not None
        torch.testing.assert_close(mine.cpu().double(), theirs, rtol=1e-4, atol=1e-4)
