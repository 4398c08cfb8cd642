"""DLPack: what is exported is a copy, and says so."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
import torch

import torch_tpu

in_host_memory = pytest.mark.skipif(
    torch.tpu.get_device_properties().platform_kind != "cpu", reason="device memory is not host's"
)


def on_tpu(count: int = 6) -> torch.Tensor:
    return torch.arange(float(count)).to("tpu")


def to_host(x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return torch.from_dlpack(x, device="cpu", **kwargs)


CONSUMERS = [to_host, np.from_dlpack]


@in_host_memory
@pytest.mark.parametrize("consume", CONSUMERS)
@pytest.mark.parametrize("mode", ["strict", "fused"])
@pytest.mark.parametrize("shape", [(64,), (4, 16), (2, 2, 16)])
def test_dlpack_is_a_copy(consume, shape, mode):
    with torch_tpu.mode(mode):
        x = torch.arange(64.0).reshape(shape).to("tpu")
        clone = x.clone()
        taken = consume(x)
        assert taken.shape == shape
        taken += 100
        x.add_(1)
        assert taken.reshape(-1).tolist() == list(range(100, 164))
        assert x.reshape(-1).tolist() == list(range(1, 65))
        assert clone.reshape(-1).tolist() == list(range(64))
        other = consume(clone)
        other[:] = 7
        assert clone.reshape(-1).tolist() == list(range(64))
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLCPU, 0)


@in_host_memory
def test_dlpack_of_a_tensor_that_goes():
    x = torch.arange(64.0).to("tpu")
    taken = torch.from_dlpack(x, device="cpu")
    del x
    gc.collect()
    torch.ones(64).to("tpu")
    assert taken.tolist() == list(range(64))


@in_host_memory
def test_dlpack_waits_for_the_value():
    x = torch.ones(256, 256).to("tpu")
    for _ in range(8):
        x = x @ x / 256
    assert np.from_dlpack(x).max() == 1.0


def flags_of(capsule: object) -> int:
    """Of a DLManagedTensorVersioned: they follow its version and two pointers."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    address = api.PyCapsule_GetPointer(ctypes.py_object(capsule), b"dltensor_versioned")
    return ctypes.c_uint64.from_address(address + 24).value


@in_host_memory
def test_dlpack_says_that_it_is_a_copy():
    x = torch.arange(64.0).to("tpu")
    copied, read_only = 2, 1
    for copy in (None, True):
        flags = flags_of(x.__dlpack__(max_version=(1, 0), copy=copy))
        assert flags & (copied | read_only) == copied
    for consume in CONSUMERS:
        with pytest.raises(BufferError, match="without a copy"):
            consume(x, copy=False)
        assert consume(x, copy=True).tolist() == list(range(64))
    assert np.from_dlpack(x).flags.writeable


@in_host_memory
def test_dlpack_and_jax():
    jax = pytest.importorskip("jax")
    x = torch.arange(64.0).reshape(8, 8).to("tpu")
    there = jax.dlpack.from_dlpack(x)
    x.zero_()
    assert np.asarray(there).tolist() == torch.arange(64.0).reshape(8, 8).tolist()
    back = torch.from_dlpack(there, device="tpu")
    back.add_(1)
    assert np.asarray(there).reshape(-1).tolist() == list(range(64))
    assert back.reshape(-1).tolist() == list(range(1, 65))


@in_host_memory
def test_dlpack_of_views():
    x = torch.arange(64.0).reshape(8, 8).to("tpu")
    assert np.from_dlpack(torch.view_as_complex(x.view(-1, 2)).conj().imag)[0] == -1  # a lazy sign
    assert np.from_dlpack(x.t()).tolist() == x.cpu().t().tolist()
    assert torch.from_dlpack(x[2:4, ::2]).tolist() == x.cpu()[2:4, ::2].tolist()


@in_host_memory
def test_dlpack_capsule():
    x = torch.arange(64.0).to("tpu")
    for to_dlpack in (torch.to_dlpack, torch.utils.dlpack.to_dlpack):
        assert torch.from_dlpack(to_dlpack(x)).tolist() == list(range(64))
    assert torch.from_dlpack(torch.to_dlpack(torch.ones(2))).tolist() == [1.0, 1.0]


def test_dlpack_copy():
    x = on_tpu()
    copied = torch.from_dlpack(x, device="cpu", copy=True)
    assert copied.tolist() == list(range(6))
    copied += 1
    assert x.tolist() == list(range(6))
    assert torch.from_dlpack(np.arange(3.0), device="tpu").tolist() == [0, 1, 2]


def test_from_dlpack_of_our_own_stays_and_shares():
    x = on_tpu()
    shared = torch.from_dlpack(x)
    assert shared.device == x.device
    shared[0] = 9
    assert x[0].item() == 9
    assert torch.from_dlpack(x[1:], copy=False).data_ptr() == x[1:].data_ptr()
    copied = torch.from_dlpack(x, device="tpu", copy=True)
    copied.zero_()
    assert x.sum().item() == 24


def test_dlpack_refuses():
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(on_tpu().requires_grad_())
    with pytest.raises(BufferError, match="conjugate bit"):
        torch.tensor([1 + 2j]).to("tpu").conj().__dlpack__()
    with pytest.raises(BufferError, match="Unsupported device_type: 2"):
        on_tpu().__dlpack__(dl_device=(2, 0))


def test_dlpack_where_memory_is_out_of_reach(monkeypatch):
    monkeypatch.setattr("torch_tpu._dlpack.in_host_memory", lambda: False)
    x = on_tpu()
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLExtDev, 0)
    with pytest.raises(BufferError, match=r"tensor\.cpu\(\)"):
        x.__dlpack__()
    with pytest.raises(BufferError, match=r"tensor\.cpu\(\)"):
        torch.to_dlpack(x)
    assert torch.from_dlpack(x.__dlpack__(dl_device=(1, 0))).tolist() == list(range(6))
    assert np.from_dlpack(x, device="cpu").tolist() == list(range(6))
    assert torch.from_dlpack(x, device="cpu", copy=True).tolist() == list(range(6))


def test_dlpack_of_other_devices_is_untouched():
    x = torch.arange(4.0)
    shared = torch.from_dlpack(x)
    shared[0] = 9
    assert x[0] == 9
    assert np.from_dlpack(x).flags.writeable
    assert x.__dlpack_device__()[0] == torch.utils.dlpack.DLDeviceType.kDLCPU
