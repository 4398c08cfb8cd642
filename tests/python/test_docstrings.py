"""The examples in the docstrings of public functions run and say the truth."""

from __future__ import annotations

import doctest
import importlib

import pytest

import torch_tpu

MODULES = [
    "torch_tpu",
    "torch_tpu._explain",
    "torch_tpu._explain.collect",
    "torch_tpu._common_ops",
    "torch_tpu._export",
    "torch_tpu._modes",
    "torch_tpu._packs",
    "torch_tpu._safetensors_header",
    "torch_tpu._stats",
    "torch_tpu.cli._common",
    "torch_tpu.compiler",
    "torch_tpu.debug",
    "torch_tpu.distributed",
    "torch_tpu.profiler",
    "torch_tpu.safetensors",
    "torch_tpu.tpu",
    "torch_tpu.tpu._device",
    "torch_tpu.tpu._eager_mode",
    "torch_tpu.tpu._lazy",
    "torch_tpu.tpu._precision",
    "torch_tpu.tpu._properties",
    "torch_tpu.tpu._snapshot",
    "torch_tpu.tpu._usage",
    "torch_tpu.tpu.amp",
    "torch_tpu.tpu.memory",
    "torch_tpu.tpu.random",
    "torch_tpu.tpu.streams",
]


NEED_JAX = [
    "torch_tpu.kernels",
    "torch_tpu.ops",
    "torch_tpu.ops._attention",
    "torch_tpu.ops._barrier",
    "torch_tpu.ops._jagged",
    "torch_tpu.ops._pool",
    "torch_tpu.ops._ragged",
    "torch_tpu.ops._sparse",
    "torch_tpu.pallas",
    "torch_tpu.pallas._define",
    "torch_tpu.pallas._mesh",
]


@pytest.mark.parametrize("name", [*MODULES, *NEED_JAX])
def test_examples(name, tmp_path, monkeypatch):
    if name in NEED_JAX:
        pytest.importorskip("jax")
    monkeypatch.chdir(tmp_path)  # some write a file
    mode = torch_tpu.get_mode()
    torch_tpu._C._reset_fallback_counts()  # what tests before this one did on the CPU
    try:
        results = doctest.testmod(importlib.import_module(name))
    finally:
        torch_tpu.set_mode(mode)
    assert results.failed == 0
    assert results.attempted > 0
