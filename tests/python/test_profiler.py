"""torch.profiler on the device: our spans among PyTorch's ops, on the device's own rows, and in the
exported trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import torch_tpu

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with torch_tpu.mode("strict"):
        yield


def work(size: int = 48) -> float:
    x = torch.randn(size, size).to("tpu")
    return torch.relu(x @ x).sum().item()


def exported(prof: Any, folder: Path) -> list[dict[str, Any]]:
    prof.export_chrome_trace(str(folder / "trace.json"))
    trace = json.loads((folder / "trace.json").read_text())
    return list(trace["traceEvents"])


def spans(events: list[dict[str, Any]], category: str, begin: str) -> list[dict[str, Any]]:
    return [e for e in events if e.get("cat") == category and e["name"].startswith(begin)]


def test_spans_on_host_and_device(tmp_path: Path) -> None:
    torch_tpu.clear_programs()
    with profile(activities=BOTH, record_shapes=True) as prof, record_function("my step"):
        work(47)
    names = {event.key for event in prof.key_averages()}
    assert {"aten::mm", "my step"} <= names  # dispatch
    assert any(name.startswith(("tpu::compile aten::mm", "tpu::load_from_disk")) for name in names)
    assert "tpu::execute aten::mm" in names
    assert any(name.startswith("tpu::upload") for name in names)
    assert "tpu::read item()" in names

    mm = next(event for event in prof.events() if event.name == "aten::mm")
    assert mm.input_shapes == [[47, 47], [47, 47]]
    on_device = [e for e in prof.events() if e.device_type == torch.autograd.DeviceType.PrivateUse1]
    assert "tpu::execute aten::mm" in {event.name for event in on_device}
    run = next(e for e in prof.key_averages() if e.key == "tpu::execute aten::mm")
    assert run.self_device_time_total > 0
    assert "TPU total" in prof.key_averages().table()

    events = exported(prof, tmp_path)
    (execute,) = spans(events, "kernel", "tpu::execute aten::mm")
    assert execute["pid"] == 0
    assert execute["dur"] > 0
    assert execute["args"]["kind"] == "op_launch"
    assert "test_profiler.py" in execute["args"]["python"]
    (upload,) = spans(events, "gpu_memcpy", "tpu::upload")
    assert upload["args"]["bytes"] == 47 * 47 * 4
    (read,) = spans(events, "gpu_memcpy", "tpu::read")
    rows = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 0}
    assert {"programs", "transfers", "collectives"} <= rows
    # Device and host have one clock: the program runs within the range that asked for it.
    (step,) = spans(events, "user_annotation", "my step")
    for span in (execute, upload, read):
        assert step["ts"] <= span["ts"] <= step["ts"] + step["dur"]
        # Within a microsecond: a trace has three digits behind it.
        assert span["ts"] + span["dur"] <= step["ts"] + step["dur"] + 1
    assert execute["ts"] + execute["dur"] <= read["ts"] + read["dur"] + 1


def test_python_stack(tmp_path: Path) -> None:
    with profile(activities=BOTH, with_stack=True) as prof:
        work()
    events = exported(prof, tmp_path)
    frames = [e for e in events if e.get("cat") == "python_function"]
    mine = next(e for e in frames if e["name"].endswith(": work"))
    assert "test_profiler.py" in mine["name"]
    (execute,) = spans(events, "cpu_op", "tpu::execute aten::mm")
    assert mine["tid"] == execute["tid"]
    assert mine["ts"] <= execute["ts"]
    assert execute["ts"] + execute["dur"] <= mine["ts"] + mine["dur"]


def test_python_stack_of_the_first_op(run_python: Callable[..., str]) -> None:
    """PyTorch keeps pointers to the names of code it saw; that of a module does not live on."""
    code = """
        import torch, torch_tpu
        from torch.profiler import profile

        def after():
            return x.sum().item()

        with profile(with_stack=True) as prof:
            x = torch.ones(5, 5, device="tpu").softmax(0)
            after()
        for name in {event.name() for event in prof.profiler.kineto_results.events()}:
            print(name)
    """
    names = run_python(code, TORCH_TPU_CACHE_DIR="off").splitlines()
    ours = [name for name in names if "_meta_kernels.py" in name]
    assert any(name.endswith(": prepare") for name in ours)
    assert not any("_meta_kernels.py(0)" in name for name in ours)
    assert any(name.endswith(": after") for name in names)  # it sees calls again


def test_fused_programs_and_background_compiles(tmp_path: Path) -> None:
    with (
        torch_tpu.mode("fused"),
        torch_tpu.fused.compile_when("first"),
        profile(activities=BOTH) as prof,
    ):
        for _ in range(3):
            work(39)
    events = exported(prof, tmp_path)
    launched = [e for e in spans(events, "kernel", "tpu::execute") if "ops" in e["args"]]
    assert launched
    assert launched[0]["args"]["ops"] > 1
    assert launched[0]["args"]["kind"] == "launch"


def test_cpu_activity_alone_has_the_host_spans(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        work()
    events = exported(prof, tmp_path)
    assert spans(events, "cpu_op", "tpu::execute aten::mm")
    assert not spans(events, "kernel", "tpu::")


def test_a_schedule(tmp_path: Path) -> None:
    """Sessions start and end several times."""
    counts = []
    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda p: counts.append(
            sum(
                e.name == "tpu::execute aten::mm" and e.device_type != torch.autograd.DeviceType.CPU
                for e in p.events()
            )
        ),
    ) as prof:
        for _ in range(8):
            work()
            prof.step()
    assert counts == [2, 2]


def test_nothing_is_traced_without_a_profiler() -> None:
    with profile(activities=BOTH):
        work()
    before = torch_tpu.stats()["launches"]
    work()
    assert torch_tpu.stats()["launches"] > before
    with profile(activities=BOTH) as prof:
        pass
    assert not [event for event in prof.events() if event.name.startswith("tpu::")]


def test_an_error_within_the_profile() -> None:
    with profile(activities=BOTH) as prof, pytest.raises(RuntimeError):
        torch.ones(3, device="tpu") @ torch.ones(4, device="tpu")
    work()
    assert prof.events() is not None


def test_another_thread_speaks_to_the_profiler_while_it_stops(
    run_python: Callable[..., str],
) -> None:
    """It has Python's lock and waits for Kineto's, which who stops has: that one must not wait for
    Python's."""
    out = run_python("""
        import faulthandler, threading
        faulthandler.dump_traceback_later(60, exit=True)
        import torch
        from torch.profiler import ProfilerActivity, profile
        both = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
        x = torch.ones(64, device="tpu")
        with profile(activities=both):
            (x + 1).sum().item()
        ended = threading.Event()

        def speak():
            while not ended.is_set():
                torch.autograd._add_metadata_json("key", "1")

        thread = threading.Thread(target=speak)
        thread.start()
        for turn in range(20):
            with profile(activities=both) as prof:
                y = x + turn
        ended.set()
        thread.join()
        print(any(event.name.startswith("tpu::execute") for event in prof.events()))
    """)
    assert out.split()[-1] == "True"
