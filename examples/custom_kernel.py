"""A Pallas kernel as a PyTorch op on the device "tpu", used in a training loop.

    python examples/custom_kernel.py

Needs JAX (pip install torchtpu[jax]). On a TPU the kernel is Mosaic code; on the CPU plugin it is
interpreted, as part of the same program.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax.experimental import pallas as pl

from torch_tpu.pallas import custom_jax_kernel

ROWS, COLUMNS = 128, 256  # a block's


def geglu_kernel(x_ref, gate_ref, out_ref):
    """What one step of the grid does, on blocks in the chip's own memory."""
    out_ref[...] = x_ref[...] * jax.nn.gelu(gate_ref[...])


def geglu_backward(inputs, output, grad):
    """Gradients of x and gate. Without this one, jax.vjp would have to differentiate the kernel."""
    x, gate = inputs
    value, slope = jax.jvp(jax.nn.gelu, (gate,), (jnp.ones_like(gate),))
    return grad * value, grad * x * slope


@custom_jax_kernel(name="examples::geglu", backward=geglu_backward)
def geglu(x, gate):
    """x · gelu(gate), block by block."""
    block = pl.BlockSpec((ROWS, COLUMNS), lambda i, j: (i, j))
    return pl.pallas_call(
        geglu_kernel,
        grid=(pl.cdiv(x.shape[0], ROWS), pl.cdiv(x.shape[1], COLUMNS)),
        in_specs=[block, block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, gate)


class Layer(torch.nn.Module):
    """A feed-forward layer whose activation is the kernel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 8 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, gates = self.up(x).chunk(2, dim=-1)
        return self.down(geglu(values, gates))


def main() -> None:
    torch.manual_seed(0)
    x, gate = torch.randn(300, 500), torch.randn(300, 500)
    out = geglu(x.to("tpu"), gate.to("tpu")).cpu()
    expected = x * torch.nn.functional.gelu(gate, approximate="tanh")
    print(f"largest difference from PyTorch: {(out - expected).abs().max().item():.1e}")
    assert torch.allclose(out, expected, atol=1e-5)

    model = Layer(64).to("tpu")
    step = torch.compile(model, fullgraph=True)  # or the model itself: eager works as well
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.randn(128, 64).to("tpu")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (step(data) - data.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    print(f"loss: {losses[0].item():.3f} -> {losses[-1].item():.3f}")
    assert losses[-1] < losses[0] / 2


if __name__ == "__main__":
    main()
