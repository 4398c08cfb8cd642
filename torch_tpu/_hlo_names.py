"""Opcodes of XLA's programs, as its text spells them."""

from __future__ import annotations

# Exchanges between devices. Where one runs beside others it is "all-reduce-start" and "-done".
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
