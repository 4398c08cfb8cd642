"""Kernels written in JAX or Pallas as PyTorch ops on the device "tpu".

JAX is imported when the first kernel is called, and then only for shapes that were not seen before:
what it traces becomes part of our own program.

    >>> import jax.numpy as jnp
    >>> import torch
    >>> from torch_tpu.pallas import custom_jax_kernel
    >>> @custom_jax_kernel
    ... def swish(x):
    ...     return x / (1 + jnp.exp(-x))
    >>> swish(torch.zeros(2, device="tpu"))
    tensor([0., 0.], device='tpu:0')
"""

from torch_tpu.pallas._define import custom_jax_kernel, helion_op, jax_op
from torch_tpu.pallas._mesh import get_pallas_mesh
from torch_tpu.pallas._op import JaxOp

__all__ = ["JaxOp", "custom_jax_kernel", "get_pallas_mesh", "helion_op", "jax_op"]
