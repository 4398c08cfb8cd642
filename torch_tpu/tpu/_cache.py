"""Counts of compiled programs, in the form that clients of Google's torch-tpu read."""

from __future__ import annotations

from typing import NamedTuple

from torch_tpu import _C


class CacheEntry(NamedTuple):
    """One program."""

    name: str
    read_count: int
    """How often it was run."""
    compilation_duration: float
    """Seconds; 0 for one that was only described."""


class CacheStats(NamedTuple):
    """All programs of the process; `torch_tpu.stats()` and `torch_tpu.explain()` say more."""

    num_cache_reqs: int
    num_cache_hits: int
    per_entry_stats: list[CacheEntry]


def _clear_cache() -> None:
    """Drops all compiled programs from memory; those on disk stay."""
    _C._clear_programs()


def _get_cache_stats() -> CacheStats:
    """How often a program was looked for and found, and which there are."""
    counts = _C._program_stats()
    entries = [
        CacheEntry(row["name"], row["runs"], row["compile_seconds"])
        for row in _C._programs()
        if row["state"] == "ready"
    ]
    hits = int(counts["hits"])
    return CacheStats(hits + int(counts["misses"]), hits, entries)
