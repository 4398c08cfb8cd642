"""`torch.tpu` and what torch does through it: devices, memory, random state, streams, autocast."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

import torch_tpu


def test_modules_are_one():
    import torch.tpu.memory

    assert sys.modules["torch.tpu"] is torch_tpu.tpu
    assert torch.tpu.memory is sys.modules["torch_tpu.tpu.memory"]


# Devices


def test_devices():
    assert torch.tpu.is_available()
    assert torch.tpu.device_count() == torch.accelerator.device_count() >= 1
    assert torch.tpu.current_device() == 0
    torch.tpu.init()
    assert torch.tpu.is_initialized()
    assert torch.tpu._initialized
    assert not torch.tpu._is_in_bad_fork()
    assert torch.accelerator.current_accelerator() == torch.device("tpu")


@pytest.mark.parametrize("device", [0, "tpu:0", "tpu", torch.device("tpu", 0), None])
def test_forms_of_a_device(device):
    with torch.tpu.device(device):
        assert torch.tpu.current_device() == 0
    assert torch.tpu.get_device_name(device) == torch.tpu.get_device_name()
    assert torch.tpu.memory_allocated(device) == torch.tpu.memory_allocated()
    torch.tpu.synchronize(device)


def test_wrong_devices():
    with pytest.raises(ValueError, match="Expected a tpu device"):
        torch.tpu.set_device("cpu")
    with pytest.raises(ValueError, match="specified index"):
        torch.tpu.set_device("tpu")
    with pytest.raises(RuntimeError):
        torch.tpu.set_device(63)
    with pytest.raises(RuntimeError):
        torch.zeros(1, device="tpu:63")
    torch.tpu.set_device(-1)
    assert torch.tpu.current_device() == 0


def test_device_context_managers_with_several_devices(run_python):
    out = run_python(
        """
        import torch
        print(torch.tpu.device_count(), torch.tpu.is_initialized())
        with torch.tpu.device(2):
            x = torch.ones(2, device="tpu")
            with torch.tpu.device("tpu:1"), torch.tpu.device(None), torch.tpu.device(-1):
                y = torch.ones(2, device="tpu")
            print(torch.tpu.current_device())
        print(x.device, y.device, torch.tpu.current_device())
        with torch.tpu.device_of(x):
            print(torch.tpu.current_device())
        with torch.tpu.device_of(torch.ones(2)):
            print(torch.tpu.current_device())
        with torch.accelerator.device_index(1):
            print(torch.tpu.current_device())
        torch.tpu.set_device("tpu:3")
        print(torch.zeros(1).tpu().device, torch.zeros(1).tpu(1).device)
        s = torch.tpu.Stream(device="tpu:1")
        with torch.tpu.stream(s):
            print(torch.tpu.current_device(), torch.tpu.current_stream() == s)
        print(torch.tpu.current_device(), torch.tpu.current_stream(1) == s)
        print(len(torch.tpu.default_generators), len(torch.tpu.get_rng_state_all()))
        torch.manual_seed(5)
        print([g.initial_seed() for g in torch.tpu.default_generators])
        print(torch.tpu.memory_allocated(2) > 0, torch.tpu.memory_allocated(0))
        print((x.to("tpu:0") + y.to("tpu:0")).tolist())
        print(torch.tpu.can_device_access_peer(0, 1))
        """,
        TORCH_TPU_CPU_DEVICES="4",
    )
    assert out.splitlines() == [
        "4 False",
        "2",
        "tpu:2 tpu:1 0",
        "2",
        "0",
        "1",
        "tpu:3 tpu:1",
        "1 True",
        "3 False",
        "4 4",
        "[5, 5, 5, 5]",
        "True 0",
        "[2.0, 2.0]",
        "False",
    ]


def test_properties():
    properties = torch.tpu.get_device_properties()
    assert properties.name == torch.tpu.get_device_name()
    assert properties.platform_kind in ("cpu", "cuda", "tpu", "other")
    assert properties.total_memory > 0
    assert properties.plugin_path.endswith(".so")
    assert (properties.major, properties.minor) == torch.tpu.get_device_capability()
    assert hash(properties) == hash(torch.tpu.get_device_properties(0))
    assert "total_memory" in repr(properties)


@pytest.mark.parametrize(
    ("kind", "name", "attributes", "expected"),
    [
        ("tpu", "TPU v5 lite", {}, (5, 0)),
        ("tpu", "TPU v6e", {}, (6, 0)),
        ("tpu", "TPU7x", {}, (7, 0)),
        ("cuda", "NVIDIA H200", {"compute_capability": "9.0"}, (9, 0)),
        ("cpu", "cpu", {}, (0, 0)),
    ],
)
def test_capability(kind, name, attributes, expected):
    from torch_tpu.tpu._properties import DeviceProperties

    properties = DeviceProperties(
        name, kind, "", "", 0, 0, 0, "", "", "", "", attributes=attributes
    )
    assert (properties.major, properties.minor) == expected


def test_lazy_call(run_python):
    out = run_python(
        """
        import torch
        torch.tpu._lazy_call(lambda: print("called", torch.tpu.is_initialized()))
        print("before")
        torch.zeros(1, device="tpu")
        torch.tpu._lazy_call(lambda: print("at once"))
        """
    )
    assert out == "before\ncalled True\nat once\n"


def test_generated_methods():
    x = torch.ones(2)
    assert not x.is_tpu
    assert x.tpu().is_tpu
    assert x.tpu(0).device == torch.device("tpu", 0)
    assert torch.nn.Linear(2, 2).tpu().weight.is_tpu
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    assert packed.to("tpu").data.is_tpu
    assert x.tpu().untyped_storage().is_tpu
    assert x.untyped_storage().tpu().device == torch.device("tpu", 0)


# Memory


@pytest.mark.usefixtures("steady_memory")
def test_memory():
    before = torch.tpu.memory_allocated()
    x = torch.ones(1 << 18).to("tpu")
    assert torch.tpu.memory_allocated() - before >= x.nbytes
    assert torch.tpu.memory_reserved() == torch.tpu.memory_allocated()
    assert torch.tpu.max_memory_allocated() >= torch.tpu.memory_allocated()
    assert torch.tpu.memory_stats()["allocated_bytes.all.current"] == torch.tpu.memory_allocated()
    nested = torch.tpu.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == torch.tpu.memory_allocated()
    assert torch.accelerator.memory_allocated() == torch.tpu.memory_allocated()
    del x
    assert torch.tpu.memory_allocated() == before
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_reserved() == before
    torch.tpu.reset_accumulated_memory_stats()
    assert torch.tpu.memory_stats()["allocated_bytes.all.freed"] == 0
    torch.tpu.empty_cache()


def test_memory_of_the_device():
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total == torch.tpu.get_device_properties().total_memory
    assert torch.accelerator.get_memory_info()[1] == total


@pytest.mark.usefixtures("steady_memory")
def test_memory_summary():
    x = torch.ones(1 << 18).to("tpu")
    text = torch.tpu.memory_summary()
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1, text
    assert "Peak Usage" in text
    assert "MiB" in text
    assert "device memory" not in torch.tpu.memory_summary(abbreviated=True)
    snapshot = torch.tpu.memory_snapshot()
    assert snapshot[0]["allocated_size"] == torch.tpu.memory_allocated() >= x.nbytes
    assert snapshot[0]["live_arrays"] > 0


@pytest.mark.usefixtures("steady_memory")
def test_memory_fraction():
    try:
        _, total = torch.tpu.mem_get_info()
        fraction = (torch.tpu.memory_allocated() + (1 << 20)) / total
        torch.tpu.set_per_process_memory_fraction(fraction)
        assert torch.tpu.get_per_process_memory_fraction() == pytest.approx(fraction, rel=1e-3)
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(1 << 20).to("tpu")
    finally:
        torch.tpu.set_per_process_memory_fraction(1.0)
    assert torch.ones(1 << 20).to("tpu").is_tpu
    with pytest.raises(ValueError, match="Allowed range"):
        torch.tpu.set_per_process_memory_fraction(1.5)
    with pytest.raises(TypeError):
        torch.tpu.set_per_process_memory_fraction(1)


# Random state


def test_manual_seed_repeats():
    torch.manual_seed(3)
    first = torch.rand(4, device="tpu")
    assert torch.tpu.initial_seed() == 3
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device="tpu").cpu(), first.cpu())
    torch.tpu.manual_seed(4)
    assert torch.tpu.initial_seed() == 4
    torch.tpu.manual_seed(-1)
    torch.manual_seed(-1)
    assert torch.tpu.initial_seed() == 2**64 - 1
    torch.tpu.seed_all()
    torch.tpu.seed()


def test_rng_state():
    state = torch.tpu.get_rng_state()
    assert state.device.type == "cpu"
    first = torch.rand(4, device="tpu").cpu()
    torch.tpu.set_rng_state(state, "tpu:0")
    assert torch.equal(torch.rand(4, device="tpu").cpu(), first)
    torch.tpu.set_rng_state_all([state])
    with torch.random.fork_rng(device_type="tpu"):
        torch.rand(3, device="tpu")
    with torch.random.fork_rng(devices=[0]):
        torch.manual_seed(1)
    assert torch.equal(torch.rand(4, device="tpu").cpu(), first)
    assert torch.tpu._get_generator("tpu:0") == torch.tpu.default_generators[0]


def test_checkpoint_keeps_random_state():
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, device="tpu", requires_grad=True)
    for use_reentrant in (False, True):
        x.grad = None
        y = checkpoint(
            lambda v: torch.nn.functional.dropout(v, 0.5) * 3, x, use_reentrant=use_reentrant
        )
        y.sum().backward()
        assert torch.equal(x.grad.cpu(), y.detach().cpu())


# Streams


def test_streams():
    stream = torch.tpu.Stream()
    assert torch.tpu.current_stream() == torch.tpu.default_stream() != stream
    with torch.tpu.stream(stream):
        assert torch.tpu.current_stream() == stream
        with torch.tpu.stream(None):
            assert torch.tpu.current_stream() == stream
        event = torch.tpu.Event(enable_timing=True)
        event.record()
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    torch.tpu.current_stream().wait_event(event)
    event.synchronize()
    torch.tpu.set_stream(stream)
    assert torch.accelerator.current_stream() == stream
    torch.tpu.set_stream(torch.tpu.default_stream())
    torch.tpu.set_stream(None)
    assert not torch.tpu.is_current_stream_capturing()


# Autocast


def test_autocast_computes_in_bfloat16():
    a = torch.ones(4, 4, device="tpu")
    with torch.autocast("tpu"):
        assert (a @ a).dtype == torch.bfloat16
        assert torch.get_autocast_dtype("tpu") == torch.bfloat16
    with torch.autocast("tpu", dtype=torch.float16):
        assert (a @ a).dtype == torch.float16
    with torch.tpu.amp.autocast():
        assert (a @ a).dtype == torch.bfloat16
    with torch.tpu.amp.autocast(enabled=False):
        assert (a @ a).dtype == torch.float32
    assert (a @ a).dtype == torch.float32
    assert torch.bfloat16 in torch.tpu.get_amp_supported_dtype()
    assert torch.tpu.is_bf16_supported()


def test_autocast_keeps_what_needs_float32():
    a = torch.ones(4, 4, device="tpu", dtype=torch.bfloat16)
    with torch.autocast("tpu"):
        assert torch.softmax(a, -1).dtype == torch.float32
        assert (a @ a).softmax(-1).dtype == torch.float32


def test_autocast_on_another_thread():
    seen = []

    def work() -> None:
        a = torch.ones(4, 4, device="tpu")
        with torch.autocast("tpu"):
            seen.append((a @ a).dtype)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [torch.bfloat16]


def test_grad_scaler():
    weight = torch.ones(3, device="tpu", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.tpu.amp.GradScaler(init_scale=4.0)
    scaler.scale((weight * 2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [-1.0, -1.0, -1.0]


def test_custom_fwd_and_bwd():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.tpu.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.tpu.amp.custom_bwd
        def backward(ctx, grad):
            return grad * 2

    x = torch.ones(2, device="tpu", dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("tpu"):
        y = Double.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
