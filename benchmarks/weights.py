"""Deterministic weights and data, so that every contestant computes the same numbers.

Only NumPy: the PyTorch and the JAX workloads both start here, and their results are compared.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def normal(name: str, shape: tuple[int, ...], scale: float = 1.0) -> Array:
    """Normal numbers that depend on the name alone."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return (generator.standard_normal(shape) * scale).astype(np.float32)


def integers(name: str, high: int, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Integers in [0, high) that depend on the name alone."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return generator.integers(high, size=shape, dtype=np.int32)


def parameter(name: str, shape: tuple[int, ...]) -> Array:
    """A parameter: zero biases, norm weights of one, and normal matrices scaled by their fan-in."""
    if len(shape) == 1:
        return np.zeros(shape, np.float32) if name.endswith("bias") else np.ones(shape, np.float32)
    fan_in = int(np.prod(shape[1:]))
    return normal(name, shape, scale=fan_in**-0.5)
