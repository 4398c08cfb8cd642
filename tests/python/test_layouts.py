"""Quantized and mkldnn tensors do not exist on the device: the error says so, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


def eye() -> torch.Tensor:
    return torch.eye(2, device="tpu")


def test_mkldnn_tensors_are_refused() -> None:
    with pytest.raises(
        NotImplementedError, match=r"aten::to_mkldnn.*not supported on device tpu.*on the CPU"
    ):
        eye().to_mkldnn()
    assert torch.equal(eye().cpu(), torch.eye(2))  # nothing is left behind


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.quantize_per_tensor(eye(), 0.1, 0, torch.quint8),
        lambda: torch.quantize_per_tensor_dynamic(eye(), torch.qint8, False),
        lambda: torch.quantize_per_channel(
            eye(), torch.ones(2, device="tpu"), torch.zeros(2, device="tpu"), 0, torch.qint8
        ),
        lambda: torch._empty_affine_quantized([2], scale=1.0, dtype=torch.qint8, device="tpu"),
        lambda: torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.quint8).to("tpu"),
    ],
)
def test_quantized_tensors_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(NotImplementedError, match=r"device tpu has none.*int8 tensors.*PT2E"):
        make()
    assert torch.equal(eye().cpu(), torch.eye(2))
