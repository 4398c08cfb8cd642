"""How exact products of float32 matrices are, inside a block. The setting is PyTorch's own
(`torch.set_float32_matmul_precision`) and part of the key of every program that multiplies."""

from __future__ import annotations

import enum

import torch

from torch_tpu._blocks import Block, Settings


class Precision(enum.Enum):
    """XLA's names for the passes a TPU takes over float32 operands, which it multiplies in
    bfloat16. On other plugins they decide as PyTorch's do: XLA:CPU is always exact.

    >>> import torch
    >>> torch.tpu.Precision.HIGHEST.float32_matmul_precision
    'highest'
    """

    DEFAULT = "default"
    """One pass: about 8 bits of the mantissa."""
    HIGH = "high"
    """Three passes: about 16 bits."""
    HIGHEST = "highest"
    """Six passes: float32. Where nothing is set, as in PyTorch."""

    @property
    def float32_matmul_precision(self) -> str:
        """What `torch.set_float32_matmul_precision` calls it."""
        return "medium" if self is Precision.DEFAULT else self.value


class precision(Block):  # noqa: N801, a function to its users
    """Runs a block, or a function, with another precision of float32 products. As PyTorch's, the
    setting belongs to the process.

    >>> import torch
    >>> with torch.tpu.precision(torch.tpu.Precision.DEFAULT):
    ...     y = torch.ones(8, 8, device="tpu") @ torch.ones(8, 8, device="tpu")
    """

    settings = Settings(
        lambda: {"float32": torch.get_float32_matmul_precision()},
        lambda now: torch.set_float32_matmul_precision(now["float32"]),
    )

    def __init__(self, precision: Precision | str) -> None:
        try:
            chosen = Precision(precision.lower() if isinstance(precision, str) else precision)
        except ValueError as error:
            names = ", ".join(repr(each.value) for each in Precision)
            raise ValueError(
                f"[precision] expected a torch.tpu.Precision or one of {names}, got {precision!r}."
            ) from error
        super().__init__({"float32": chosen.float32_matmul_precision})
        self._precision = chosen

    def __enter__(self) -> Precision:
        self._enter()
        return self._precision
