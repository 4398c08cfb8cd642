"""Options of XLA's compiler reach the compiler and are part of the keys of programs."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

import torch_tpu
from torch_tpu import aot
from torch_tpu.compiler import allow_excess_precision, custom_compiler_options

LEVEL = "xla_backend_optimization_level"
EMITTERS = "xla_cpu_use_fusion_emitters"
EXCESS = "xla_allow_excess_precision"


@pytest.fixture(autouse=True)
def none_left():
    yield
    assert torch_tpu._C._compiler_options() == {}


def test_each_set_has_its_programs(fresh_counts):
    x = torch.randn(7, 7, device="tpu")

    def misses(options):
        before = torch_tpu.stats()["misses"]
        with custom_compiler_options(options):
            torch.testing.assert_close(x.exp().cpu(), x.cpu().exp())
        return torch_tpu.stats()["misses"] - before

    assert misses({}) == 1
    assert misses({LEVEL: 1}) == 1
    assert misses({LEVEL: 2}) == 1
    assert misses({LEVEL: 1}) == misses({}) == misses({LEVEL: 2}) == 0


def test_blocks_add_up():
    with custom_compiler_options({LEVEL: 1}):
        with custom_compiler_options({EMITTERS: False}):
            assert torch_tpu._C._compiler_options() == {LEVEL: 1, EMITTERS: False}
        with custom_compiler_options({LEVEL: 2}):
            assert torch_tpu._C._compiler_options() == {LEVEL: 2}
        assert torch_tpu._C._compiler_options() == {LEVEL: 1}


def test_blocks_of_threads_overlap():
    """Each in a thread of its own: A enters, B enters, A leaves, B leaves."""
    turns = {name: threading.Event() for name in ("a in", "b in", "a out", "b out")}
    seen: dict[str, dict[str, object]] = {}

    def run(me, options, before, until):
        assert turns[before].wait(60) if before else True
        with custom_compiler_options(options):
            seen[f"{me} in"] = torch_tpu._C._compiler_options()
            turns[f"{me} in"].set()
            assert turns[until].wait(60)
        seen[f"{me} out"] = torch_tpu._C._compiler_options()
        turns[f"{me} out"].set()

    threads = [
        threading.Thread(target=run, args=("a", {LEVEL: 1, "xla_dump_to": ""}, None, "b in")),
        threading.Thread(target=run, args=("b", {LEVEL: 2, EMITTERS: False}, "a in", "a out")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert seen == {
        "a in": {LEVEL: 1, "xla_dump_to": ""},
        "b in": {LEVEL: 2, EMITTERS: False, "xla_dump_to": ""},
        "a out": {LEVEL: 2, EMITTERS: False},
        "b out": {},
    }


def test_a_process_that_was_forked_while_a_block_was_entered(run_python):
    """The thread that enters it is not there to finish."""
    out = run_python(
        """
        import os, threading, torch_tpu
        from torch_tpu._modes import mode
        held, done = threading.Event(), threading.Event()

        def hold():
            with mode.settings._lock:
                held.set()
                done.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(60)
        child = os.fork()
        if child == 0:
            with torch_tpu.mode("strict"):
                os._exit(7 if torch_tpu.get_mode() == "strict" else 8)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        done.set()
        thread.join()
        """
    )
    assert out == "7\n"


def test_the_earlier_block_may_have_what_the_later_one_lacks():
    a, b, c = (custom_compiler_options({LEVEL: n}) for n in (1, 2, 3))
    a.__enter__()
    b.__enter__()
    c.__enter__()
    b.__exit__(None, None, None)
    assert torch_tpu._C._compiler_options() == {LEVEL: 3}
    c.__exit__(None, None, None)
    assert torch_tpu._C._compiler_options() == {LEVEL: 1}
    a.__exit__(None, None, None)
    assert torch_tpu._C._compiler_options() == {}


@pytest.mark.parametrize("outer", [{}, {LEVEL: 2}])
@pytest.mark.parametrize(
    "enter",
    [
        lambda: custom_compiler_options({LEVEL: 1}).__enter__(),
        lambda: allow_excess_precision(False).__enter__(),
        lambda: setattr(torch.backends.tpu, "allow_excess_precision", False),
    ],
    ids=["options", "excess", "excess from the call on"],
)
def test_a_block_that_is_not_entered_leaves_nothing(fused_mode, outer, enter):
    """The error of a call before it comes out at its entry."""
    with custom_compiler_options(outer):
        torch_tpu._C._set_compiler_options({**outer, "xla_no_such_option": True})
        y = torch.ones(3, device="tpu") * 2.5 + 1
        with pytest.raises(RuntimeError, match="No such compile option: 'xla_no_such_option'"):
            enter()
        assert torch_tpu._C._compiler_options() == {**outer, "xla_no_such_option": True}
        torch_tpu._C._set_compiler_options(outer)
        del y


@pytest.mark.parametrize("mode", ["strict", "fused", "debug"])
def test_an_unknown_option_is_the_compilers_error(mode):
    x = torch.ones(3, device="tpu")
    with (
        torch_tpu.mode(mode),
        pytest.raises(RuntimeError, match="No such compile option: 'xla_no_such_option'"),
        custom_compiler_options({"xla_no_such_option": True}),
    ):
        (x * 2.5 + 1).cpu()
    torch.testing.assert_close((x * 2.5 + 1).cpu(), torch.full((3,), 3.5))


def test_fused_pieces_have_one_set(fused_mode, run_python):
    """What was issued before a block is launched before it."""
    out = run_python(
        f"""
        import torch, torch_tpu
        torch_tpu.fused.compile_when("first").__enter__()
        x = torch.ones(4, device="tpu")
        for _ in range(3):
            y = x.exp() + 1
            with torch_tpu.compiler.custom_compiler_options({{"{LEVEL}": 1}}):
                z = (y * 2).tanh() + y
            print(z.sum().item())
        print(sorted(p["ops"] for p in torch_tpu._C._programs() if p["fused"]))
        """,
        TORCH_TPU_MODE="fused",
        TORCH_TPU_CACHE_DIR="off",
    )
    *sums, programs = out.splitlines()
    expected = float(((torch.ones(4).exp() + 1) * 2).tanh().sum() + (torch.ones(4).exp() + 1).sum())
    assert [float(text) for text in sums] == pytest.approx([expected] * 3)
    assert "aten::exp" in programs
    assert "aten::tanh" in programs
    for piece in programs.split("]"):
        assert not ("aten::exp" in piece and "aten::tanh" in piece)


def test_the_text_says_them(tmp_path, run_python):
    run_python(
        f"""
        import torch, torch_tpu
        x = torch.ones(4, device="tpu")
        with torch_tpu.compiler.custom_compiler_options({{"{LEVEL}": 1, "xla_dump_to": ""}}):
            x.exp().cpu()
        """,
        TORCH_TPU_DUMP=str(tmp_path),
        TORCH_TPU_CACHE_DIR="off",
    )
    texts = [file.read_text() for file in tmp_path.glob("*exp*.mlir")]
    assert any(t.startswith(f"// compile options: {LEVEL}=i:1 xla_dump_to=s:\n") for t in texts)


def test_disk_keys(tmp_path, run_python):
    """Another process finds the program of the same options, and only that."""
    code = """
        import sys, torch, torch_tpu
        x = torch.ones(9, device="tpu")
        torch_tpu.reset_stats()
        for level in {levels}:
            with torch_tpu.compiler.custom_compiler_options(
                {{"xla_backend_optimization_level": level}} if level else {{}}
            ):
                x.exp().cpu()
            s = torch_tpu.stats()
            print(s["compiles"], s["disk_hits"])
    """
    env = {"TORCH_TPU_CACHE_DIR": str(tmp_path), "TORCH_TPU_MODE": "strict"}
    assert run_python(code.format(levels=[1]), **env).split() == ["1", "0"]
    later = run_python(code.format(levels=[1, 2, 0]), **env)
    assert later.split() == ["0", "1", "1", "1", "2", "1"]


def test_compiled_functions():
    f = torch.compile(lambda x: (x @ x).tanh())
    x = torch.randn(6, 6, device="tpu")
    f(x)
    programs = len(torch_tpu._C._programs())
    for level in (1, 2, 1):
        with custom_compiler_options({LEVEL: level}):
            torch.testing.assert_close(f(x).cpu(), (x.cpu() @ x.cpu()).tanh())
    f(x)
    assert len(torch_tpu._C._programs()) == programs + 2


def test_blocks_within_compiled_functions():
    """Dynamo leaves them to Python; what they set is put back all the same."""

    @torch.compile
    def f(x):
        with custom_compiler_options({LEVEL: 1}), torch.tpu.precision("high"):
            y = x @ x
        with allow_excess_precision(False), torch_tpu.mode("strict"):
            return y + 1

    before = torch_tpu.get_mode()
    x = torch.randn(6, 6, device="tpu")
    for _ in range(3):
        torch.testing.assert_close(f(x).cpu(), x.cpu() @ x.cpu() + 1)
        assert torch_tpu._C._compiler_options() == {}
        assert torch.get_float32_matmul_precision() == "highest"
        assert torch_tpu.get_mode() == before
        assert not custom_compiler_options.settings._open


def test_excess_precision_that_was_never_initialized(monkeypatch):
    """As Dynamo makes them, to look at."""
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    allow_excess_precision.__new__(allow_excess_precision)
    assert not said


def test_excess_precision():
    assert torch.backends.tpu.allow_excess_precision is True  # XLA:CPU's own default
    with torch.tpu.allow_excess_precision(False):
        assert torch.backends.tpu.allow_excess_precision is False
        x = torch.full((64,), 1.0078125, device="tpu", dtype=torch.bfloat16)
        assert (x * x).float().sum().item() == pytest.approx(64 * 1.015625)
        with torch.tpu.allow_excess_precision(True):
            assert torch.backends.tpu.allow_excess_precision is True
        assert torch.backends.tpu.allow_excess_precision is False
    assert torch_tpu._C._compiler_options() == {}

    @allow_excess_precision(False)
    def inside():
        return torch.backends.tpu.allow_excess_precision

    assert (inside(), torch.backends.tpu.allow_excess_precision) == (False, True)
    torch.backends.tpu.allow_excess_precision = False
    try:
        assert torch_tpu._C._compiler_options() == {EXCESS: False}
    finally:
        torch_tpu._C._set_compiler_options({})


def test_excess_precision_of_a_function_is_put_back_to_that_of_the_call():
    @allow_excess_precision(False)
    def inside(depth):
        return [torch_tpu._C._compiler_options()] + (inside(depth - 1) if depth else [])

    assert torch_tpu._C._compiler_options() == {}
    with custom_compiler_options({EXCESS: True, LEVEL: 1}):
        assert inside(1) == [{EXCESS: False, LEVEL: 1}] * 2
        assert torch_tpu._C._compiler_options() == {EXCESS: True, LEVEL: 1}
    torch.backends.tpu.allow_excess_precision = True
    try:
        assert inside(0) == [{EXCESS: False}]
        assert torch_tpu._C._compiler_options() == {EXCESS: True}
    finally:
        torch_tpu._C._set_compiler_options({})


def test_excess_precision_of_blocks_that_overlap():
    a, b = allow_excess_precision(False), allow_excess_precision(True)
    b.__enter__()
    a.__enter__()
    assert torch_tpu._C._compiler_options() == {EXCESS: False}
    b.__exit__(None, None, None)
    assert torch_tpu._C._compiler_options() == {EXCESS: False}
    a.__exit__(None, None, None)
    assert torch_tpu._C._compiler_options() == {}


def test_excess_precision_from_the_call_on_outlives_blocks_of_other_options():
    with custom_compiler_options({LEVEL: 1}):
        torch.backends.tpu.allow_excess_precision = False
        assert torch_tpu._C._compiler_options() == {LEVEL: 1, EXCESS: False}
    assert torch_tpu._C._compiler_options() == {EXCESS: False}
    torch_tpu._C._set_compiler_options({})


def test_ahead_of_time_refuses_options():
    """Needs no libtpu: it is said before anything is compiled."""
    model = torch.nn.Linear(4, 4, device="meta")
    x = torch.empty(2, 4, device="meta")
    traced = aot.trace(model, (x,))
    words = rf"{LEVEL}=1.*Leave custom_compiler_options.*LIBTPU_INIT_ARGS"
    with custom_compiler_options({LEVEL: 1}):
        with pytest.raises(aot.AotError, match=words):
            aot.compile(model, (x,))
        with pytest.raises(aot.AotError, match=words):
            aot.compile_traced(traced, "v5e:2x2")


def test_what_is_no_option():
    with pytest.raises(TypeError, match="expected names with a str, bool, int or float"):
        custom_compiler_options({"xla_x": [1]})
    with pytest.raises(ValueError, match="has a space"):
        custom_compiler_options({"xla x": 1}).__enter__()
