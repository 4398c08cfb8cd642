"""Sparse and other layouts are not supported on the device: nothing makes such a tensor there. The
error says so, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

CSR = ([0, 1, 1], [0], [1.0], (2, 2))
COO = ([[0], [1]], [1.0], (2, 2))


def eye() -> torch.Tensor:
    return torch.eye(2, device="tpu")


@pytest.mark.parametrize(
    "make",
    [
        lambda: eye().to_sparse(),
        lambda: eye().to_sparse(1),
        lambda: eye().to_sparse(layout=torch.sparse_csr),
        lambda: eye().to_sparse_coo(),
        lambda: eye().to_sparse_csr(),
        lambda: eye().to_sparse_csc(),
        lambda: eye().to_sparse_bsr((1, 1)),
        lambda: eye().to_sparse_bsc((1, 1)),
        lambda: eye().to_mkldnn(),
        lambda: eye().requires_grad_().to_sparse_csr(),
        lambda: torch.sparse_csr_tensor(*CSR, device="tpu"),
        lambda: torch.sparse_csr_tensor(*CSR).to("tpu"),
        lambda: torch.sparse_compressed_tensor(*CSR, layout=torch.sparse_csr, device="tpu"),
        lambda: torch.sparse_csr_tensor(*(torch.tensor(v, device="tpu") for v in CSR[:3])),
        lambda: torch.sparse_coo_tensor(*COO, device="tpu"),
        lambda: torch.sparse_coo_tensor(*COO).to("tpu"),
        lambda: torch.zeros(2, 2, layout=torch.sparse_coo, device="tpu"),
        lambda: torch.empty(2, 2, layout=torch.sparse_csr, device="tpu"),
    ],
)
def test_other_layouts_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(
        NotImplementedError, match=r"aten::.*not supported on device tpu.*on the CPU"
    ):
        make()
    assert torch.equal(eye().cpu(), torch.eye(2))  # nothing is left behind


def test_by_way_of_the_cpu() -> None:
    sparse = eye().cpu().to_sparse_csr()
    assert torch.equal(sparse.to_dense().to("tpu"), eye())


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
