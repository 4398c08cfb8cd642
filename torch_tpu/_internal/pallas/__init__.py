"""See torch_tpu.pallas."""

from torch_tpu._internal.pallas import tpu_torch_pallas
from torch_tpu._internal.pallas.pallas import JaxCallable, jax_placeholder
from torch_tpu.pallas import get_pallas_mesh, jax_op

__all__ = ["JaxCallable", "get_pallas_mesh", "jax_op", "jax_placeholder", "tpu_torch_pallas"]
