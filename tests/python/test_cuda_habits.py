"""What people know from torch.cuda, on torch.tpu: every public name is there or says what to use
instead; waiting that is told; the history of memory in PyTorch's format."""

from __future__ import annotations

import gc
import pickle

import pytest
import torch
from torch.cuda import _memory_viz

import torch_tpu
from torch_tpu.tpu import _not_here

# What `dir(torch.cuda)` has because it imports it.
IMPORTED = {
    *("Any", "Callable", "DEVICE_REQUIREMENT", "Device", "NewType", "Optional"),
    *("PYTORCH_RELEASES_CODE_CC", "TYPE_CHECKING", "cast", "classproperty", "importlib"),
    *("lru_cache", "os", "platform", "threading", "torch", "traceback", "warnings"),
}


def public_names():
    return {name for name in dir(torch.cuda) if not name.startswith("_")} - IMPORTED


def test_every_name_of_torch_cuda_is_decided():
    names = public_names() | set(torch.cuda.__all__)
    undecided = {n for n in names if not hasattr(torch.tpu, n)} - set(_not_here.REASONS)
    assert undecided == set()
    assert not {n for n in _not_here.REASONS if hasattr(torch.tpu, n)}


def test_every_name_of_torch_accelerator():
    missing = {name for name in torch.accelerator.__all__ if not hasattr(torch.tpu, name)}
    assert missing <= {"Graph"}


@pytest.mark.parametrize("name", ["CUDAGraph", "graph", "make_graphed_callables"])
def test_graphs_name_torch_compile(name):
    with pytest.raises(AttributeError, match=r"use torch\.compile\(f\) instead"):
        getattr(torch.tpu, name)
    assert not hasattr(torch.tpu, name)


def test_a_plain_misspelling_has_no_reason():
    with pytest.raises(AttributeError, match=r"has no attribute 'memory_alocated'$"):
        torch.tpu.memory_alocated  # noqa: B018


def test_errors_and_names_of_the_accelerator():
    assert torch.tpu.OutOfMemoryError is torch.OutOfMemoryError
    with pytest.raises(torch.tpu.OutOfMemoryError):
        torch.empty(2**60, device="tpu")
    assert torch.tpu.current_device_index() == torch.accelerator.current_device_index()
    with torch.tpu.device_index(0):
        assert torch.tpu.current_device_idx() == 0
    torch.tpu.set_device_idx(0)
    assert torch.tpu.current_accelerator() == torch.accelerator.current_accelerator()
    free, total = torch.tpu.get_memory_info()
    assert 0 <= free <= total
    assert 0 <= torch.tpu.device_memory_used() <= total
    if torch.tpu.get_device_properties().platform_kind == "cpu":
        with pytest.raises(RuntimeError, match="does not tell how busy the device is"):
            torch.tpu.utilization()


def test_host_memory_stats():
    before = torch.tpu.host_memory_stats()["allocated_bytes.current"]
    x = torch.empty(1000, pin_memory=True)
    stats = torch.tpu.host_memory_stats()
    assert stats["allocated_bytes.current"] == before + 4000
    assert stats["num_host_alloc"] >= 1
    del x
    assert torch.tpu.host_memory_stats()["allocated_bytes.current"] == before
    assert torch.tpu.host_memory_stats()["allocated_bytes.peak"] >= before + 4000
    torch.tpu.reset_peak_host_memory_stats()
    torch.tpu.reset_accumulated_host_memory_stats()
    stats = torch.tpu.host_memory_stats()
    assert stats["allocated_bytes.peak"] == before
    assert stats["num_host_alloc"] == 0


# Waiting


@pytest.fixture
def sync_debug():
    yield torch.tpu.set_sync_debug_mode
    torch.tpu.set_sync_debug_mode("default")


READS = {
    "item": (lambda x: x.sum().item(), r"item\(\)"),
    "cpu": (lambda x: x.cpu(), "a copy to the host"),
    "nonzero": (lambda x: x.nonzero(), "whose size depends on data"),
    "mask": (lambda x: x[x > 0], "whose size depends on data"),
}


@pytest.mark.parametrize("mode", ["strict", "fused"])
@pytest.mark.parametrize("read", READS)
def test_waiting_is_told(read, mode, sync_debug):
    function, what = READS[read]
    with torch_tpu.mode(mode):
        x = torch.arange(4.0, device="tpu") + 1
        sync_debug("error")
        assert torch.tpu.get_sync_debug_mode() == 2
        with pytest.raises(RuntimeError, match=f"synchronizing TPU operation: .*{what}.* at .*py"):
            function(x)
        sync_debug(1)
        with pytest.warns(UserWarning, match=what):
            function(x)
        (x * 2).exp()  # computing is no waiting
        torch.tpu.synchronize()  # nor is that, which was asked for
        sync_debug(0)
        function(x)


def test_sync_modes():
    with pytest.raises(RuntimeError, match="expected one of `default`, `warn`, `error`"):
        torch.tpu.set_sync_debug_mode("loud")


# The history of memory


@pytest.fixture
def history():
    gc.collect()
    torch.tpu.synchronize()
    torch.tpu.memory._record_memory_history()
    yield
    torch.tpu.memory._record_memory_history(enabled=None)


def made_here():
    return torch.ones(5000, device="tpu") * 2


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_history(mode, history):
    with torch_tpu.mode(mode):
        kept = made_here()
        gone = torch.zeros(3000, device="tpu") + 1
        torch.tpu.synchronize()
        address = {s["total_size"]: s["address"] for s in torch.tpu.memory_snapshot()}
        del gone
        snapshot = torch.tpu.memory._snapshot()
    (segment,) = [s for s in snapshot["segments"] if s["total_size"] == 20000]
    (block,) = segment["blocks"]
    assert block["state"] == "active_allocated"
    assert block["frames"][0]["filename"] == __file__
    assert block["frames"][0]["name"] == "made_here"
    assert block["frames"][0]["line"] == made_here.__code__.co_firstlineno + 1
    assert not [s for s in snapshot["segments"] if s["total_size"] == 12000]
    events = [e for e in snapshot["device_traces"][0] if e["addr"] == address[12000]]
    last = [e["action"] for e in events if e["size"] == 12000][-3:]
    assert last == ["alloc", "free_requested", "free_completed"]
    times = [e["time_us"] for e in snapshot["device_traces"][0]]
    assert times == sorted(times)
    del kept


def test_pytorchs_own_viewer_reads_it(history, tmp_path):
    kept = made_here()
    torch.tpu.synchronize()
    file = tmp_path / "snapshot.pickle"
    torch.tpu.memory._dump_snapshot(str(file))
    with open(file, "rb") as opened:
        snapshot = pickle.load(opened)
    assert "19.5KiB" in _memory_viz.trace(snapshot)
    assert "segments: " in _memory_viz.segsum(snapshot)
    assert "<script" in _memory_viz.trace_plot(snapshot)
    assert "<script" in _memory_viz.segment_plot(snapshot)
    del kept


def test_history_takes_another_number():
    def noted():
        for i in range(30):
            (torch.ones(i + 1, device="tpu") * 2).cpu()
        return len(torch_tpu._C._memory_events())

    record = torch.tpu.memory._record_memory_history
    record(max_entries=10, clear_history=True)
    try:
        assert noted() == 10
        record(max_entries=10)  # the same one goes on
        assert len(torch_tpu._C._memory_events()) == 10
        with pytest.warns(UserWarning, match="of 10 events ends, and one of 20 begins"):
            record(max_entries=20)
        assert noted() == 20
        with pytest.warns(UserWarning, match="of 20 events ends, and one of 1 begins"):
            record(enabled="state")
        assert noted() == 1
    finally:
        record(enabled=None)


def test_history_is_bounded_and_ends():
    torch.tpu.memory._record_memory_history(max_entries=10, clear_history=True)
    try:
        for i in range(30):
            (torch.ones(i + 1, device="tpu") * 2).cpu()
        assert len(torch_tpu._C._memory_events()) == 10
    finally:
        torch.tpu.memory._record_memory_history(enabled=None)
    assert torch.tpu.memory._snapshot()["segments"] == []
    x = torch.ones(7, device="tpu")
    assert torch_tpu._C._memory_events() == []
    assert torch.tpu.memory_snapshot()[0]["live_arrays"] >= 1
    with pytest.raises(ValueError, match="enabled is None, 'state' or 'all'"):
        torch.tpu.memory._record_memory_history(enabled="some")
    del x
