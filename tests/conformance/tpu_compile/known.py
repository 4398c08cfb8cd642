"""Entries that the TPU compiler does not take in every dtype, and why that stands."""

from __future__ import annotations

KNOWN: dict[str, str] = {}
