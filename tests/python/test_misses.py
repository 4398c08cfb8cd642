"""Each call that had to compile, and the first difference from the nearest call before it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_tpu
from torch_tpu import _C

pytestmark = pytest.mark.usefixtures("fresh_counts")


def ones(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.ones(*sizes).to("tpu", **options)


def last_miss(op: str) -> dict[str, Any]:
    found = [miss for miss in _C._misses() if miss["op"] == op]
    assert found, f"no miss of {op}"
    assert found[-1]["readable"]
    return found[-1]


def test_shape():
    x = ones(8, 135)
    torch.cat([ones(8, 128), x], 1)
    torch.cat([x, x], 1)
    miss = last_miss("aten::cat")
    assert miss["text"] == "input[0].shape[1]: 128 → 135"
    assert (miss["label"], miss["before"], miss["after"]) == ("input[0].shape[1]", "128", "135")
    assert miss["argument"] == "tensors[0]"
    assert miss["others"] == 0
    assert miss["signature"] == "float32[8, 135], float32[8, 135], dim=1"
    assert f"{__file__}:" in miss["where"]
    assert " in test_shape" in miss["where"]


def test_dtype():
    x = ones(4)
    torch.mul(x, x)
    torch.mul(x, ones(4, dtype=torch.bfloat16))
    assert last_miss("aten::mul.Tensor")["text"] == "input[1].dtype: float32 → bfloat16"


def test_dim_and_flag():
    x = ones(3, 4)
    torch.softmax(x, 0)
    torch.softmax(x, 1)
    assert last_miss("aten::_softmax")["text"] == "dim: 0 → 1"
    x.sum(1)
    x.sum(1, keepdim=True)
    assert last_miss("aten::sum.dim_IntList")["text"] == "keepdim: False → True"


def test_none_and_given():
    x = ones(3, 4)
    torch.std(x)
    torch.std(x, 0)
    assert last_miss("aten::std.correction")["text"] == "dim: None → given"
    torch.std(ones(3, 4, 5), 0)
    torch.std(ones(3, 4, 5))
    assert last_miss("aten::std.correction")["text"] == "dim: given → None"
    torch.clamp(x, min=0.0)
    torch.clamp(x, min=0.0, max=1.0)
    assert last_miss("aten::clamp")["text"] == "max: None → any number"
    torch.clamp(x, max=2.0)
    assert last_miss("aten::clamp")["text"] == "min: any number → None"


def test_view_offset():
    x = ones(10)
    torch.neg(x[:8])
    torch.neg(x[1:9])
    miss = last_miss("aten::neg")
    assert miss["text"] == ("input[0].view begins: at the start → further on along dim 0")
    torch.neg(x[2:])  # any place further on
    assert last_miss("aten::neg") == miss
    torch.neg(ones(8))
    assert last_miss("aten::neg")["text"] == "input[0]: no longer a view"


def test_donated_memory():
    x = ones(6)
    kept = x.clone()  # shares the value: nothing may be overwritten
    x.relu_()
    x.relu_()
    assert last_miss("aten::relu_")["text"] == "input[0]: donated memory"
    assert torch.equal(kept.cpu(), torch.ones(6))


def test_first_call_and_dropped_program():
    x = ones(5)
    torch_tpu.reset_stats()
    torch.atan(x)
    assert "first call" in last_miss("aten::atan")["text"]
    torch_tpu.clear_programs()
    torch.atan(x)
    assert last_miss("aten::atan")["text"] == "the program was dropped"


def test_nearest_call_is_the_one_with_the_longest_common_beginning():
    a, b, c = ones(4, 8), ones(2, 8), ones(4, 9)
    torch.tan(a)
    torch.tan(b)
    torch.tan(c)
    assert last_miss("aten::tan")["text"] == "input[0].shape[1]: 8 → 9"


def test_settings_outside_the_call():
    x = ones(3, 3)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        x @ x
        torch.set_float32_matmul_precision("medium")
        x @ x
    finally:
        torch.set_float32_matmul_precision(before)
    assert last_miss("aten::mm")["text"] == "float32 matmul precision: highest → medium"


def test_every_kind_of_argument_can_be_read():
    x, y = ones(4, 6), ones(4, 6)
    double = ones(4, 6, dtype=torch.float64)
    calls = [
        lambda: torch._foreach_add([x, y], 1.5),
        lambda: torch._foreach_add([x, y], [1.0, 2.0]),
        lambda: torch._foreach_add([x, y], [3.0, 3.0]),
        lambda: torch._foreach_mul_([x[:2], x[2:]], 2.0),
        lambda: torch.nn.functional.gelu(x, approximate="tanh"),
        lambda: torch.nn.functional.layer_norm(x, (6,)),
        lambda: torch.nn.functional.layer_norm(x, (6,), y[0], y[1]),
        lambda: torch.add(x, y, alpha=2),
        lambda: torch.add(x, y, out=torch.empty(0, device="tpu")),
        lambda: x.t().add_(1),
        lambda: x[1:3].mul_(y[1:3]),
        lambda: torch.empty(3, 3, device="tpu")[:, 1].fill_(1),
        lambda: x.clamp(0, None),
        lambda: x * torch.tensor(2.0),
        lambda: torch.complex(x, y).conj() * 2,
        lambda: x.to(torch.float16),
        lambda: x[:, [0, 2]],
        lambda: x.roll((1, 2), (0, 1)),
        lambda: torch.arange(0, 5, device="tpu"),
        lambda: torch.randn(3, device="tpu"),
        lambda: torch.special.bessel_j0(double),
        lambda: torch.nn.functional.interpolate(x[None, None], scale_factor=2.0),
        lambda: torch.nn.functional.conv2d(x[None, None], ones(1, 1, 2, 2), padding=1),
        lambda: torch.einsum("ij,kj->ik", x, y),
        lambda: torch.nn.functional.pad(x, (1, 1), mode="constant", value=3.0),
        lambda: torch.nn.functional.hinge_embedding_loss(x, y),  # decomposed, or a composite
        lambda: torch.cdist(x, y),
    ]
    for call in calls:
        call()
    unreadable = [(m["op"], m["where"]) for m in _C._misses() if not m["readable"]]
    assert unreadable == []
    assert len(_C._misses()) >= len(calls)
