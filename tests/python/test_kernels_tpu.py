"""Each kernel of torch_tpu.kernels, forward and backward, through the real TPU compiler: as Mosaic
code inside our own program. Needs JAX and libtpu, no TPU."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("jax")

from conformance.tpu_compile.children import python_child

import torch_tpu
from torch_tpu import kernels  # noqa: F401  (defines the ops)

SITES = [s for s in os.environ.get("TORCH_TPU_TEST_SITE_PACKAGES", "").split(":") if s]
HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None or any(
    (Path(s) / "libtpu" / "libtpu.so").exists() for s in SITES
)
OPS = torch.ops.torch_tpu


def text_for_tpu(function, *args):
    """The program of a function of tensors, lowered for a TPU; (dtype, *sizes) is a tensor."""
    with torch_tpu._C._Recording(0, "tpu") as recording:
        tensors = []
        for dtype, *sizes in args:
            strides = torch.empty(sizes, device="meta").stride()
            tensors.append(recording.parameter(sizes, list(strides), dtype))
        results = function(*tensors)
        flat = results if isinstance(results, (list, tuple)) else [results]
        return recording.module("kernel", list(flat))["text"]


def cases(dtype):
    """Name -> a function of tensors, and their dtypes and sizes. Sizes of a small model, and some
    that no block divides."""
    i32, f32 = torch.int32, torch.float32
    flash = (False, None, 512, 512, -1, -1)
    causal = (True, None, 512, 512, -1, -1)
    window = (True, None, 512, 512, 300, -1)
    return {
        "flash": (
            lambda q, k, v: OPS.flash_attention(q, k, v, *causal),
            [(dtype, 2, 8, 1024, 128), (dtype, 2, 2, 1024, 128), (dtype, 2, 2, 1024, 128)],
        ),
        "flash_odd": (
            lambda q, k, v: OPS.flash_attention(q, k, v, *flash),
            [(dtype, 1, 4, 333, 64), (dtype, 1, 1, 777, 64), (dtype, 1, 1, 777, 64)],
        ),
        "flash_window": (
            lambda q, k, v: OPS.flash_attention(q, k, v, *window),
            [(dtype, 1, 4, 1024, 128), (dtype, 1, 2, 1024, 128), (dtype, 1, 2, 1024, 128)],
        ),
        "flash_backward": (
            lambda q, k, v, o, lse, g: OPS.flash_attention_backward(
                q, k, v, *causal, [o, lse], [g, None], [0, 1, 2]
            ),
            [
                *((dtype, 1, 4, 1000, 128), (dtype, 1, 2, 1000, 128), (dtype, 1, 2, 1000, 128)),
                *((dtype, 1, 4, 1000, 128), (f32, 1, 4, 1000), (dtype, 1, 4, 1000, 128)),
            ],
        ),
        "paged": (
            lambda q, k, v, n, t: OPS.paged_attention(q, k, v, n, t),
            [
                *((dtype, 4, 8, 128), (dtype, 2, 64, 32, 128), (dtype, 2, 64, 32, 128)),
                *((i32, 4), (i32, 4, 16)),
            ],
        ),
        "grouped": (
            lambda x, w, n: OPS.grouped_matmul(x, w, n),
            [(dtype, 1000, 512), (dtype, 8, 512, 1024), (i32, 8)],
        ),
        "grouped_backward": (
            lambda x, w, n, g: OPS.grouped_matmul_backward(x, w, n, [g], [g], [0, 1]),
            [(dtype, 1000, 512), (dtype, 8, 512, 1024), (i32, 8), (dtype, 1000, 1024)],
        ),
        "rms": (lambda x, w: OPS.rms_norm(x, w), [(dtype, 3, 100, 1024), (dtype, 1024)]),
        "rms_backward": (
            lambda x, w, g: OPS.rms_norm_backward(x, w, 1e-6, [x], [g], [0, 1]),
            [(dtype, 3, 100, 1024), (dtype, 1024), (dtype, 3, 100, 1024)],
        ),
        "rotary": (
            lambda x, c, s: OPS.rotary(x, c, s),
            [(dtype, 2, 4, 500, 128), (f32, 500, 64), (f32, 500, 64)],
        ),
        "rotary_64": (
            lambda x, c, s: OPS.rotary_backward(x, c, s, [x], [x], [0]),
            [(dtype, 2, 4, 500, 64), (f32, 500, 32), (f32, 500, 32)],
        ),
        "loss": (
            lambda x, t: OPS.cross_entropy(x, t),
            [(dtype, 300, 32000), (i32, 300)],
        ),
        "loss_backward": (
            lambda x, t, n, g: OPS.cross_entropy_backward(x, t, -100, [n, n], [g, None], [0]),
            [(dtype, 300, 32000), (i32, 300), (f32, 300), (f32, 300)],
        ),
        "bag": (
            lambda t, i, b, w: OPS.embedding_bag(t, i, b, w, 64),
            [(dtype, 5000, 128), (i32, 512), (i32, 512), (f32, 512)],
        ),
        "bag_backward": (
            lambda t, i, b, w, g: OPS.embedding_bag_backward(t, i, b, w, 64, [g], [g], [0]),
            [(dtype, 5000, 128), (i32, 512), (i32, 512), (f32, 512), (dtype, 64, 128)],
        ),
    }


NO_KERNEL = {"bag_backward"}  # a scatter of the compiler's


def test_programs_for_a_tpu_hold_mosaic_kernels():
    for name, (function, args) in cases(torch.bfloat16).items():
        text = text_for_tpu(function, *args)
        assert ("@tpu_custom_call" in text) == (name not in NO_KERNEL), name
        assert text.count("func.func public") == 1, name
        # No compiler sees what a kernel computes: each says it.
        assert text.count("cost_estimate") == text.count("@tpu_custom_call"), name


@pytest.mark.libtpu
@pytest.mark.slow
@pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not installed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_compile_for_v5e(tmp_path, dtype):
    child = python_child("torch_tpu.aot.child", 120.0, "v5e:2x2", "tpu", *SITES)
    wrong = []
    try:
        for name, (function, args) in cases(dtype).items():
            path = tmp_path / f"{name}.mlir"
            path.write_text(text_for_tpu(function, *args))
            answer = child.run({"path": str(path)})
            if answer["status"] != "ok":
                wrong.append((name, answer["status"], answer.get("detail")))
    finally:
        child.stop()
    assert not wrong
