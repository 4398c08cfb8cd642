"""The device as torch sees it: counting, choosing, memory, pinning, module.to, fork, threads."""

from __future__ import annotations

import threading

import pytest
import torch

import torch_tpu
from torch_tpu import _C

accelerator = torch.accelerator
COUNT = accelerator.device_count()


def on_thread(function):
    """The result of `function` on a new thread."""
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


# Starting


def test_nothing_starts_before_the_first_tensor(run_python):
    run_python("""
        import torch
        from torch_tpu import _C
        torch.manual_seed(1)
        assert torch.accelerator.is_available()
        assert torch.accelerator.device_count() == 1
        assert _C._current_device() == 0
        torch.Generator("tpu").manual_seed(3)
        torch.empty(3, pin_memory=True)
        _C._synchronize()
        x = torch.ones(3, requires_grad=True)
        x.sum().backward()
        assert not _C._is_initialized()
        torch.empty(2, device="tpu")
        assert _C._is_initialized()
    """)


def test_missing_plugin_is_an_answer_not_a_crash(run_python):
    run_python(
        """
        import torch
        assert not torch.accelerator.is_available()
        assert torch.accelerator.device_count() == 0
        try:
            torch.empty(2, device="tpu")
        except RuntimeError as error:
            assert "/no/such/plugin.so" in str(error), error
        else:
            raise AssertionError("no error")
        """,
        TORCH_TPU_PLUGIN="/no/such/plugin.so",
    )


def test_forked_child_is_refused(run_python):
    out = run_python("""
        import os, torch
        from torch_tpu import _C
        x = torch.arange(4.0).to("tpu")
        event = torch.Event("tpu")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert _C._is_in_bad_fork() and not _C._is_initialized()
                assert not torch.accelerator.is_available()
                torch.manual_seed(0)
                calls = [
                    lambda: torch.empty(2, device="tpu"),
                    lambda: torch.arange(4.0).to("tpu"),
                    lambda: torch.accelerator.synchronize(),
                    lambda: event.record(),
                ]
                for call in calls:
                    try:
                        call()
                    except RuntimeError as error:
                        assert "Cannot re-initialize TPU in forked subprocess" in str(error), error
                    else:
                        raise AssertionError("no error")
                del x  # the parent's memory: must not be freed here
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert x.cpu().tolist() == [0.0, 1.0, 2.0, 3.0]
        print("parent lives")
    """)
    assert "parent lives" in out


def test_fork_before_the_start_is_fine(run_python):
    run_python("""
        import os, torch
        torch.accelerator.device_count()
        pid = os.fork()
        if pid == 0:
            ok = torch.arange(3.0).to("tpu").cpu().tolist() == [0.0, 1.0, 2.0]
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    """)


# Choosing a device


def test_accelerator():
    assert accelerator.current_accelerator() == torch.device("tpu")
    assert accelerator.is_available()
    assert COUNT >= 1
    assert accelerator.current_device_index() == 0
    with accelerator.device_index(0):
        assert accelerator.current_device_index() == 0
    assert torch.empty(1, device="tpu").device == torch.device("tpu", 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda index: torch.empty(2, device=f"tpu:{index}"),
        lambda index: torch.Generator(f"tpu:{index}"),
        lambda index: torch.Stream(f"tpu:{index}"),
        lambda index: accelerator.set_device_index(index),
        lambda index: accelerator.synchronize(index),
        lambda index: _C._set_device(index),
    ],
)
def test_device_that_does_not_exist(call):
    with pytest.raises(RuntimeError, match=rf"Invalid device id: tpu:{COUNT} .* only {COUNT} tpu"):
        call(COUNT)
    assert accelerator.current_device_index() == 0


def test_capability_lists_the_dtypes():
    dtypes = accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.bfloat16, torch.float32, torch.int64, torch.bool} <= dtypes
    assert torch.qint8 not in dtypes
    assert torch.complex32 in dtypes


def test_properties_and_environment_table():
    properties = _C._device_properties(0)
    assert properties["total_memory"] > 0
    assert properties["platform_kind"] in ("cpu", "cuda", "tpu", "other")
    assert properties["plugin_path"].endswith(".so")
    major, minor = properties["api_version"].split(".")
    assert (int(major), int(minor)) >= (0, 67)
    assert properties["stablehlo_version"].count(".") == 2
    rows = {row["name"]: row for row in _C._env_table()}
    assert rows["TORCH_TPU_CPU_DEVICES"]["default"] == "1"
    assert all(row["doc"] and row["allowed"] for row in rows.values())


def test_several_devices(run_python):
    run_python(
        """
        import threading, torch
        from torch_tpu import _C
        acc = torch.accelerator
        assert acc.device_count() == 4
        for i in range(4):
            x = torch.arange(3.0).to(f"tpu:{i}")
            assert x.device == torch.device("tpu", i)
            assert x.cpu().tolist() == [0.0, 1.0, 2.0]
            assert acc.memory_allocated(i) >= 12
            assert torch.UntypedStorage(8, device=f"tpu:{i}").device == x.device
        acc.set_device_index(2)
        assert torch.empty(1, device="tpu").device.index == 2
        assert torch.Generator("tpu").device.index == 2
        with acc.device_index(3):
            assert torch.empty(1, device="tpu").device.index == 3
        assert acc.current_device_index() == 2
        seen = []
        thread = threading.Thread(target=lambda: seen.append(acc.current_device_index()))
        thread.start(); thread.join()
        assert seen == [0]  # the current device belongs to a thread

        held = torch.arange(256.0).to("tpu:1")
        before = [acc.memory_allocated(i) for i in range(4)]
        more = torch.arange(1000.0).to("tpu:1")
        after = [acc.memory_allocated(i) for i in range(4)]
        assert [b - a for a, b in zip(before, after)] == [0, 4000, 0, 0]
        for i in range(4):
            acc.synchronize(i)
        assert held.to("tpu:3").cpu().equal(torch.arange(256.0))

        w = torch.ones(3, device="tpu:1", requires_grad=True)
        (w * 2).sum().backward()
        assert w.grad.device.index == 1 and w.grad.cpu().tolist() == [2.0, 2.0, 2.0]
        try:
            torch.empty(1, device="tpu:4")
        except RuntimeError as error:
            assert "only 4 tpu devices, tpu:0 to tpu:3" in str(error), error
        else:
            raise AssertionError("no error")
        try:
            torch.empty(3, device="tpu:0").set_(held.untyped_storage())
        except RuntimeError as error:
            assert "different device" in str(error), error
        else:
            raise AssertionError("no error")
        """,
        TORCH_TPU_CPU_DEVICES="4",
    )


# Memory


@pytest.mark.usefixtures("steady_memory")
def test_memory_is_counted():
    accelerator.synchronize()
    start = accelerator.memory_allocated()
    x = torch.arange(1000, dtype=torch.float32).to("tpu")
    assert accelerator.memory_allocated() - start == 4000
    y = torch.arange(500, dtype=torch.float32).to("tpu")
    del x
    assert accelerator.memory_allocated() - start == 2000
    assert accelerator.max_memory_allocated() - start >= 6000
    accelerator.reset_peak_memory_stats()
    assert accelerator.max_memory_allocated() - start == 2000
    stats = accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] - start == 2000
    accelerator.reset_accumulated_memory_stats()
    assert accelerator.memory_stats()["allocated_bytes.all.allocated"] == 0
    free, total = accelerator.get_memory_info()
    assert 0 < free <= total
    del y
    accelerator.empty_cache()


@pytest.mark.usefixtures("steady_memory")
def test_uninitialised_memory_takes_none():
    start = accelerator.memory_allocated()
    x = torch.empty(1 << 20, device="tpu")
    assert accelerator.memory_allocated() == start
    assert x.untyped_storage().nbytes() == 4 << 20


def test_too_large_is_out_of_memory():
    before = _C._memory_counts()["out_of_memory"]
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 4\.00 PiB"):
        torch.empty(1 << 50, device="tpu")
    assert _C._memory_counts()["out_of_memory"] == before + 1


@pytest.mark.usefixtures("steady_memory")
def test_memory_limit():
    accelerator.synchronize()
    held = _C._memory_counts()["current_bytes"]
    _C._set_memory_limit(held + 4096)
    try:
        assert _C._memory_limit() == held + 4096
        torch.empty(1024, device="tpu")
        with pytest.raises(torch.OutOfMemoryError, match="limit set for this process"):
            torch.empty(1025, device="tpu")
    finally:
        _C._set_memory_limit(0)
    with pytest.raises(ValueError, match="negative"):
        _C._set_memory_limit(-1)


# Pinned memory


def test_pinned_memory():
    x = torch.arange(100.0).pin_memory()
    assert x.is_pinned()
    assert x[10:].is_pinned()  # an address inside
    assert x.view(10, 10).t().is_pinned()
    assert x.data_ptr() % 64 == 0
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert not torch.arange(100.0).is_pinned()
    assert not torch.empty(3, device="tpu").is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.empty(3, device="tpu").pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(3, device="tpu", pin_memory=True)
    assert x.to("tpu", non_blocking=True).cpu().equal(torch.arange(100.0))


def test_pinned_memory_is_forgotten_when_freed():
    x = torch.empty(1 << 20, pin_memory=True)
    address, size = x.data_ptr(), x.nbytes
    del x
    y = torch.frombuffer(bytearray(64), dtype=torch.uint8)
    assert not y.is_pinned() or address <= y.data_ptr() < address + size
    assert not y.is_pinned()


def test_data_loader_pins():
    data = torch.utils.data.TensorDataset(torch.arange(8.0).view(4, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    batches = [batch for (batch,) in loader]
    assert all(batch.is_pinned() for batch in batches)
    assert torch.cat([batch.to("tpu", non_blocking=True).cpu() for batch in batches]).sum() == 28


# Modules


def test_module_to_keeps_parameters():
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)
    expected = first.weight.detach().clone()
    parameter, version = first.weight, first.weight._version
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first.weight.grad = torch.ones(3, 3)
    model.to("tpu")
    assert first.weight is parameter
    assert second.weight is parameter  # still tied
    assert parameter.device.type == "tpu"
    assert parameter.grad.device.type == "tpu"
    assert parameter._version == version
    assert optimizer.param_groups[0]["params"][0] is parameter
    assert parameter.detach().cpu().equal(expected)
    model.cpu()
    assert first.weight is parameter
    assert parameter.device.type == "cpu"
    assert parameter.detach().equal(expected)


def test_shallow_copy_between_host_and_device():
    cpu, tpu = torch.empty(2), torch.empty(2, device="tpu")
    assert torch._has_compatible_shallow_copy_type(cpu, tpu)
    assert torch._has_compatible_shallow_copy_type(tpu, cpu)
    assert torch._has_compatible_shallow_copy_type(tpu, tpu)
    sparse = torch.eye(2).to_sparse()
    assert not torch._has_compatible_shallow_copy_type(tpu, sparse)
    assert not torch._has_compatible_shallow_copy_type(sparse, tpu)


# Threads


def test_threads_share_tensors():
    shared = torch.zeros(64, device="tpu")
    errors = []

    def work(number: int) -> None:
        try:
            for _ in range(50):
                mine = torch.full((64,), float(number)).to("tpu")
                shared.copy_(mine)
                values = set(shared.cpu().tolist())
                assert len(values) == 1  # a write is whole or not there
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    accelerator.synchronize()


def test_current_device_and_stream_belong_to_a_thread():
    stream = torch.Stream("tpu")
    with stream:
        assert accelerator.current_stream() == stream
        assert on_thread(lambda: accelerator.current_stream().stream_id) == 0
    assert on_thread(accelerator.current_device_index) == 0


def test_native_module_knows_its_torch():
    assert torch.__version__.split("+")[0].startswith(_C._torch_version.rsplit(".", 1)[0])
    assert torch_tpu.__version__
