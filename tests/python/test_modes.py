"""Modes: choosing them, what debug says, stopping at NaN; and the counters."""

from __future__ import annotations

import inspect
import threading

import pytest
import torch

import torch_tpu


@pytest.fixture(autouse=True)
def _restore():
    mode, nans = torch_tpu.get_mode(), torch_tpu.debug.is_checking_nans()
    yield
    torch_tpu.set_mode(mode)
    torch_tpu._C._set_debug_nans(nans)


def work() -> list[float]:
    x = torch.arange(4.0).to("tpu")
    return (x * 2 + 1).relu().tolist()


@pytest.mark.parametrize("name", ["debug", "strict", "fused"])
def test_set_mode(name):
    torch_tpu.set_mode(name)
    assert torch_tpu.get_mode() == name
    assert work() == [1.0, 3.0, 5.0, 7.0]


@pytest.mark.parametrize("name", ["fast", "", "Strict", None, 1])
def test_unknown_mode(name):
    before = torch_tpu.get_mode()
    with pytest.raises(ValueError, match="expected 'debug', 'strict' or 'fused'"):
        torch_tpu.set_mode(name)
    with pytest.raises(ValueError, match="expected 'debug', 'strict' or 'fused'"):
        torch_tpu.mode(name)
    assert torch_tpu.get_mode() == before


def test_mode_as_context():
    torch_tpu.set_mode("fused")
    with torch_tpu.mode("strict") as outer:
        assert torch_tpu.get_mode() == "strict"
        with torch_tpu.mode("debug"), outer:
            assert torch_tpu.get_mode() == "strict"
        assert torch_tpu.get_mode() == "strict"
    assert torch_tpu.get_mode() == "fused"
    with pytest.raises(ZeroDivisionError), torch_tpu.mode("strict"):
        1 / 0  # noqa: B018
    assert torch_tpu.get_mode() == "fused"


def test_mode_as_decorator():
    torch_tpu.set_mode("fused")

    @torch_tpu.mode("strict")
    def depth(n: int) -> list[str]:
        return [torch_tpu.get_mode()] + (depth(n - 1) if n else [])

    assert depth(2) == ["strict"] * 3
    assert torch_tpu.get_mode() == "fused"


def test_modes_of_blocks_that_overlap():
    """As two threads may enter and leave them."""
    torch_tpu.set_mode("fused")
    a, b = torch_tpu.mode("strict"), torch_tpu.mode("debug")
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    assert torch_tpu.get_mode() == "debug"
    b.__exit__(None, None, None)
    assert torch_tpu.get_mode() == "fused"


def test_a_mode_that_is_set_within_a_block_ends_with_it():
    torch_tpu.set_mode("fused")
    with torch_tpu.mode("strict"):
        torch_tpu.set_mode("debug")
        with torch_tpu.mode("strict"):
            pass
        assert torch_tpu.get_mode() == "debug"
    assert torch_tpu.get_mode() == "fused"


def test_the_mode_is_put_back_where_a_pending_call_fails():
    torch_tpu.set_mode("strict")
    x = torch.ones(3, device="tpu")
    block = torch_tpu.mode("fused")
    block.__enter__()
    torch_tpu._C._set_compiler_options({"xla_no_such_option": True})
    try:
        y = x * 2.5 + 1
        with pytest.raises(RuntimeError, match="xla_no_such_option"):
            block.__exit__(None, None, None)
        assert torch_tpu.get_mode() == "strict"
        del y
    finally:
        torch_tpu._C._set_compiler_options({})


def test_mode_belongs_to_the_process():
    seen = []
    with torch_tpu.mode("debug"):
        thread = threading.Thread(target=lambda: seen.append(torch_tpu.get_mode()))
        thread.start()
        thread.join()
    assert seen == ["debug"]


@pytest.mark.parametrize("name", ["debug", "strict", "fused"])
def test_mode_from_the_environment(run_python, name):
    code = "import torch_tpu; print(torch_tpu.get_mode())"
    assert run_python(code, TORCH_TPU_MODE=name) == f"{name}\n"


def test_default_mode_is_fused(run_python, monkeypatch):
    monkeypatch.delenv("TORCH_TPU_MODE", raising=False)
    assert run_python("import torch_tpu; print(torch_tpu.get_mode())") == "fused\n"


def test_training_step_is_the_same_in_all_modes():
    results = []
    for name in ("debug", "strict", "fused"):
        torch_tpu.set_mode(name)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        x = torch.randn(4, 8)
        model.to("tpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            model(x.to("tpu")).square().mean().backward()
            optimizer.step()
        results.append([p.detach().cpu() for p in model.parameters()])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


# Debug


def test_nan_stops_at_the_op_and_names_the_line():
    x = torch.tensor([[1.0, -1.0]]).to("tpu")
    with torch_tpu.debug.check_nans():
        assert torch_tpu.debug.is_checking_nans()
        y = x + 1 - 1
        line = inspect.currentframe().f_lineno + 2
        with pytest.raises(RuntimeError) as raised:
            torch.log(y)
    message = str(raised.value)
    assert "aten::log" in message
    assert "[1, 2]" in message
    assert "Float" in message
    assert f"test_modes.py:{line} in test_nan_stops_at_the_op_and_names_the_line" in message
    assert not torch_tpu.debug.is_checking_nans()


def test_infinity_stops_too_and_only_where_it_starts():
    x = torch.tensor([0.0, 1.0]).to("tpu")
    with torch_tpu.debug.check_nans(), pytest.raises(RuntimeError, match="aten::reciprocal"):
        torch.reciprocal(x)
    infinite = torch.reciprocal(x)
    with torch_tpu.debug.check_nans():
        assert (infinite * 2).tolist() == [float("inf"), 2.0]


def test_no_nan_check_unless_asked():
    with torch_tpu.mode("debug"):
        assert torch.log(torch.tensor([-1.0]).to("tpu")).isnan().item()


def test_check_nans_is_undone():
    torch_tpu.set_mode("fused")
    with torch_tpu.debug.check_nans():
        assert torch_tpu.get_mode() == "debug"
        with torch_tpu.debug.check_nans(False):
            assert torch.log(torch.tensor([-1.0]).to("tpu")).isnan().item()
        assert torch_tpu.debug.is_checking_nans()
    assert torch_tpu.get_mode() == "fused"
    assert not torch_tpu.debug.is_checking_nans()


def test_nan_checks_that_overlap_with_modes():
    """As two threads may enter and leave them; and one that is set plainly stays."""
    torch_tpu.set_mode("fused")
    check, strict = torch_tpu.debug.check_nans(), torch_tpu.mode("strict")
    check.__enter__()
    strict.__enter__()
    check.__exit__(None, None, None)
    assert torch_tpu.get_mode() == "strict"
    assert not torch_tpu.debug.is_checking_nans()
    strict.__exit__(None, None, None)
    assert torch_tpu.get_mode() == "fused"
    torch_tpu.debug.check_nans()
    assert torch_tpu.debug.is_checking_nans()
    assert torch_tpu.get_mode() == "debug"
    torch_tpu.debug.check_nans(False)
    assert not torch_tpu.debug.is_checking_nans()
    assert torch_tpu.get_mode() == "debug"  # turning it off leaves the mode
    torch_tpu.set_mode("fused")


def test_nan_check_from_the_environment(run_python):
    out = run_python(
        """
        import torch
        try:
            torch.log(torch.tensor([-1.0]).to("tpu")).tolist()
        except RuntimeError as error:
            print(error)
        """,
        TORCH_TPU_MODE="debug",
        TORCH_TPU_DEBUG_NANS="1",
    )
    assert "aten::log" in out
    assert "<string>:4" in out


def test_nan_in_backward():
    x = torch.zeros(2).to("tpu").requires_grad_()
    y = torch.sqrt(x).sum()
    with torch_tpu.debug.check_nans(), pytest.raises(RuntimeError, match="NaN or Inf"):
        y.backward()


@pytest.mark.parametrize("name", ["debug", "strict", "fused"])
def test_wrong_arguments_raise_at_the_call(name):
    torch_tpu.set_mode(name)
    a, b = torch.ones(2, 3).to("tpu"), torch.ones(2, 4).to("tpu")
    with pytest.raises(RuntimeError, match=r"broadcast|must match"):
        a + b
    with pytest.raises(RuntimeError, match=r"multiplied|reduction dim"):
        a @ b
    with pytest.raises(IndexError, match="Dimension out of range"):
        a.sum(5)
    assert (a + 1).sum().item() == 12


# Counters


def test_stats():
    work()
    before = torch_tpu.stats()
    work()
    after = torch_tpu.stats()
    assert after["compiles"] == before["compiles"]
    assert after["hits"] > before["hits"]
    assert after["compile_seconds"] == before["compile_seconds"]
    assert after["compile_seconds"] + after["disk"]["saved_seconds"] > 0
    torch_tpu.clear_programs()
    assert torch_tpu.stats()["programs"] == 0
    assert work() == [1.0, 3.0, 5.0, 7.0]


def test_coverage(run_python):
    out = run_python(
        """
        import torch, torch_tpu
        from torch import library
        library.define("test::triple", "(Tensor x) -> Tensor")
        library.impl("test::triple", "cpu", lambda x: x * 3)
        print(torch_tpu.coverage())
        for _ in range(2):
            print(torch.ops.test.triple(torch.ones(2, device="tpu")))
        for name, use in torch_tpu.coverage().items():
            print(name, use.calls, use.seconds > 0)
        """
    )
    assert out.splitlines() == [
        "{}",
        "tensor([3., 3.], device='tpu:0')",
        "tensor([3., 3.], device='tpu:0')",
        "test::triple 2 True",
    ]


def test_fallback_can_be_an_error(run_python):
    out = run_python(
        """
        import torch
        from torch import library
        library.define("test::triple", "(Tensor x) -> Tensor")
        library.impl("test::triple", "cpu", lambda x: x * 3)
        try:
            torch.ops.test.triple(torch.ones(2, device="tpu"))
        except NotImplementedError as error:
            print(error)
        """,
        TORCH_TPU_FALLBACK="error",
    )
    assert "test::triple" in out
    assert "TORCH_TPU_FALLBACK=error" in out
