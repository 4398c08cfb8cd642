"""Helion kernels through the Pallas code they generate. Needs JAX and Helion (pip install helion),
no accelerator."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("jax")
helion = pytest.importorskip("helion")
import helion.language as hl  # noqa: E402

import torch_tpu  # noqa: E402
from torch_tpu.pallas import helion_op  # noqa: E402


@helion.kernel(backend="pallas", config=helion.Config(block_sizes=[64, 128]), static_shapes=True)
def add_relu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.relu(x[tile] + y[tile])
    return out


@helion.kernel(
    backend="pallas", config=helion.Config(block_sizes=[128, 128, 128]), static_shapes=True
)
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="pallas", config=helion.Config(block_sizes=[16]), static_shapes=True)
def scaled_softmax(x: torch.Tensor, scale: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.nn.functional.softmax(x[tile, :] * scale, dim=1)
    return out


def test_values():
    torch.manual_seed(0)
    x, y = torch.randn(256, 256), torch.randn(256, 256)
    both = helion_op("test_helion::add_relu", add_relu), helion_op("test_helion::matmul", matmul)
    expected = torch.relu(x @ y + y)
    for mode in ("strict", "fused"):
        with torch_tpu.mode(mode):
            out = both[0](both[1](x.to("tpu"), y.to("tpu")), y.to("tpu"))
            torch.testing.assert_close(out.cpu(), expected, atol=1e-4, rtol=1e-4)
    compiled = torch.compile(lambda x, y: both[0](both[1](x, y), y), fullgraph=True)
    torch.testing.assert_close(
        compiled(x.to("tpu"), y.to("tpu")).cpu(), expected, atol=1e-4, rtol=1e-4
    )


def test_rows_and_numbers():
    op = helion_op("test_helion::scaled_softmax", scaled_softmax)
    x = torch.randn(64, 200)
    torch.testing.assert_close(op(x.to("tpu"), 2.5).cpu(), torch.softmax(x * 2.5, 1))


def test_gradient():
    def backward(inputs, output, grad):
        masked = grad * (output > 0)
        return masked, masked

    op = helion_op("test_helion::add_relu_grad", add_relu, backward=backward)
    x = torch.randn(64, 128, device="tpu", requires_grad=True)
    op(x, torch.zeros(64, 128, device="tpu")).sum().backward()
    torch.testing.assert_close(x.grad, (x > 0).float())


def test_mosaic():
    op = helion_op("test_helion::matmul_tpu", matmul)
    with torch_tpu._C._Recording(0, "tpu") as recording:
        args = [recording.parameter([256, 256], [256, 1], torch.bfloat16) for _ in range(2)]
        assert "@tpu_custom_call" in recording.module("kernel", [op(*args)])["text"]


def test_mosaic_of_sizes_that_blocks_do_not_divide():
    op = helion_op("test_helion::add_relu_tpu", add_relu)
    with torch_tpu._C._Recording(0, "tpu") as recording:
        args = [recording.parameter([100, 200], [200, 1], torch.float32) for _ in range(2)]
        assert "@tpu_custom_call" in recording.module("kernel", [op(*args)])["text"]


def test_what_is_no_kernel():
    with pytest.raises(TypeError, match=r"expected a kernel made by helion\.kernel"):
        helion_op("test_helion::bad", torch.relu)


def test_its_own_way_to_the_device():
    """A kernel called with our tensors: Helion finds `torch_tpu._internal` and launches by that."""
    x, y = torch.randn(256, 256), torch.randn(256, 256)
    for shift in (0.0, 1.0):  # the second call goes the way that the first has prepared
        out = add_relu(x.to("tpu"), (y + shift).to("tpu"))
        assert out.device.type == "tpu"
        torch.testing.assert_close(out.cpu(), torch.relu(x + y + shift))
    with torch_tpu._C._Recording(0, "tpu") as recording:
        args = [recording.parameter([256, 256], [256, 1], torch.float32) for _ in range(2)]
        assert "@tpu_custom_call" in recording.module("kernel", [add_relu(*args)])["text"]
