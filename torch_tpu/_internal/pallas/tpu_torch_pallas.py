"""Another package's native module, which Helion imports for a shortcut around `JaxCallable`. There
is none here: a call by JaxCallable is a call of an op, and short already."""

from __future__ import annotations

from typing import Any


def call_custom_kernel(*args: Any, **kwargs: Any) -> Any:
    """Raises: see the module."""
    raise NotImplementedError(
        "[call_custom_kernel] programs of kernels are not called by fingerprint here: call the "
        "JaxCallable, or the op that torch_tpu.pallas.jax_op gives."
    )
