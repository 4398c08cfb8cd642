"""Quantized and mkldnn tensors do not exist on the device: the error says so, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


def eye() -> torch.Tensor:
    return torch.eye(2, device="tpu")


@pytest.mark.parametrize(
    "make",
    [
        lambda: eye().to_mkldnn(),
        lambda: torch.quantize_per_tensor(eye(), 0.1, 0, torch.quint8),
    ],
)
def test_other_layouts_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(
        NotImplementedError, match=r"aten::.*not supported on device tpu.*on the CPU"
    ):
        make()
    assert torch.equal(eye().cpu(), torch.eye(2))  # nothing is left behind
