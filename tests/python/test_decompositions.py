"""The second tier: ops that PyTorch's Python decompositions write in terms of others."""

from __future__ import annotations

import pytest
import torch
from torch import library
from torch._decomp import register_decomposition

import torch_tpu

LIBRARY = library.Library("tpu_test", "DEF")
CALLS: list[str] = []


def define(schema: str, function) -> None:
    """An op with a decomposition, and a CPU kernel that is the same function."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, function, "CPU")
    op = getattr(torch.ops.tpu_test, name)

    @register_decomposition(op)
    def run(*args, **kwargs):
        CALLS.append(name)
        return function(*args, **kwargs)


def gate(x, y, slope):
    out = torch.empty_like(x)  # written through a view, then in place
    out[:1].copy_((x * y)[:1])
    out[1:] = torch.where(x > 0, x * y, x * slope)[1:]
    return out.mul_(2)


def parts(x, dim):
    return [x.softmax(dim), x.t(), x.sum()]


define("gate(Tensor x, Tensor y, float slope) -> Tensor", gate)
define("parts(Tensor x, int dim) -> Tensor[]", parts)
define("noise(Tensor x) -> (Tensor, Tensor)", lambda x: (torch.rand_like(x), torch.rand_like(x)))
define("peek(Tensor x) -> Tensor", lambda x: x * x.sum().item())
define("table(Tensor x) -> Tensor", lambda x: x + torch.tensor([1.0, 2, 3]).to(x.device))
define("refuse(Tensor x) -> Tensor", lambda x: x @ torch.ones(7, 7, device=x.device))
LIBRARY.define("bump(Tensor x) -> Tensor")
LIBRARY.define("bump_(Tensor(a!) x) -> Tensor(a!)")
LIBRARY.define("bump.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
register_decomposition(torch.ops.tpu_test.bump.default)(lambda x: x + 1)


@pytest.fixture(autouse=True)
def _fresh():
    CALLS.clear()
    torch_tpu.clear_programs()
    torch_tpu._C._reset_decomposed_ops()


def pair(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(*shape)
    return x, x.to("tpu")


def test_one_program_and_python_runs_once_per_key() -> None:
    (x, dev_x), (y, dev_y) = pair(4, 4), pair(4, 4)
    torch_tpu.fused.flush()  # what the tests before have left
    before = torch_tpu.stats()["misses"]
    for slope in (0.1, 0.1, 0.1):
        result = torch.ops.tpu_test.gate(dev_x, dev_y, slope)
        torch.testing.assert_close(result.cpu(), gate(x, y, slope))
    assert CALLS == ["gate"]
    assert torch_tpu.stats()["misses"] == before + 1
    # A decomposition sees numbers, so another number is another program.
    result = torch.ops.tpu_test.gate(dev_x, dev_y, 0.5)
    torch.testing.assert_close(result.cpu(), gate(x, y, 0.5))
    assert CALLS == ["gate", "gate"]
    assert torch_tpu._C._decomposed_ops() == ["tpu_test::gate"]
    assert "tpu_test::gate" not in torch_tpu.coverage()


def test_views_as_arguments_and_lists_as_results() -> None:
    x, dev_x = pair(5, 6)
    for make in (lambda t: t[1:, ::2], lambda t: t.t()):
        results = torch.ops.tpu_test.parts(make(dev_x), 1)
        for ours, theirs in zip(results, parts(make(x), 1), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)
            assert ours.shape == theirs.shape


def test_random_numbers_differ_by_op_and_by_call() -> None:
    _, dev_x = pair(64)
    torch.manual_seed(3)
    first = torch.ops.tpu_test.noise(dev_x)
    second = torch.ops.tpu_test.noise(dev_x)
    drawn = [t.cpu() for t in (*first, *second)]
    for i in range(4):
        assert (drawn[i] >= 0).all()
        assert (drawn[i] < 1).all()
        for j in range(i):
            assert not torch.equal(drawn[i], drawn[j])
    torch.manual_seed(3)
    torch.testing.assert_close(torch.ops.tpu_test.noise(dev_x)[1].cpu(), drawn[1])


def test_constants_of_the_decomposition_stay() -> None:
    x, dev_x = pair(3)
    for _ in range(2):
        result = torch.ops.tpu_test.table(dev_x).cpu()
        torch.testing.assert_close(result, x + torch.tensor([1.0, 2, 3]))
    assert CALLS == ["table"]


@pytest.mark.filterwarnings("ignore:The operator")
def test_a_decomposition_that_reads_values_runs_on_the_cpu() -> None:
    x, dev_x = pair(4)
    for _ in range(3):
        torch.testing.assert_close(torch.ops.tpu_test.peek(dev_x).cpu(), x * x.sum().item())
    assert torch_tpu.coverage()["tpu_test::peek"].calls >= 3
    assert CALLS.count("peek") == 1  # and is not tried again


def test_errors_are_the_cpus() -> None:
    x, dev_x = pair(4, 4)
    with pytest.raises(RuntimeError) as expected:
        torch.ops.tpu_test.refuse(x)
    with pytest.raises(RuntimeError) as raised:
        torch.ops.tpu_test.refuse(dev_x)
    assert str(raised.value) == str(expected.value)


def test_in_place_and_out_forms_go_through_the_functional_op() -> None:
    x, dev_x = pair(3, 2)
    alias = dev_x[0]
    assert torch.ops.tpu_test.bump_(dev_x) is dev_x
    torch.testing.assert_close(dev_x.cpu(), x + 1)
    torch.testing.assert_close(alias.cpu(), x[0] + 1)
    out = torch.empty(0, device="tpu")
    assert torch.ops.tpu_test.bump.out(dev_x, out=out) is out
    torch.testing.assert_close(out.cpu(), x + 2)


def test_an_aten_op_known_only_by_its_decomposition() -> None:
    x, dev_x = pair(2, 3, 4, 4)
    weight, bias = torch.rand(3), torch.rand(3)
    result = torch.ops.aten.cudnn_batch_norm(
        dev_x, weight.to("tpu"), bias.to("tpu"), None, None, True, 0.1, 1e-5
    )
    expected = torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True)
    torch.testing.assert_close(result[0].cpu(), expected)
    assert "aten::cudnn_batch_norm" in torch_tpu._C._decomposed_ops()


def test_bad_arguments_do_not_reach_a_lenient_decomposition() -> None:
    # index_add's lowering refuses these; PyTorch's decomposition would broadcast them.
    arguments = (torch.ones(3, 2), 0, torch.tensor([0, 1]), torch.ones(2))
    with pytest.raises(RuntimeError) as expected:
        torch.index_add(*arguments)
    moved = [x.to("tpu") if isinstance(x, torch.Tensor) else x for x in arguments]
    with pytest.raises(RuntimeError) as raised:
        torch.index_add(*moved)
    assert str(raised.value) == str(expected.value)
