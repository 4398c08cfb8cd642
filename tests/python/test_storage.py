"""Storages: allocation, addresses, views, resize_, set_, and what survives of the contents."""

from __future__ import annotations

import copy
import io

import pytest
import torch


def on_tpu(count: int = 6, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(count, dtype=dtype).to("tpu")


# Making


@pytest.mark.parametrize("size", [(), (0,), (3,), (2, 0, 3), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_empty_has_the_geometry_of_cpu(size, dtype):
    ours, theirs = torch.empty(size, dtype=dtype, device="tpu"), torch.empty(size, dtype=dtype)
    assert ours.shape == theirs.shape
    assert ours.stride() == theirs.stride()
    assert ours.dtype == dtype
    assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()
    assert ours.is_contiguous()


def test_memory_format():
    x = torch.empty(2, 3, 4, 5, device="tpu", memory_format=torch.channels_last)
    assert x.stride() == (60, 1, 15, 3)
    x = torch.empty(2, 3, 4, 5, 6, device="tpu", memory_format=torch.channels_last_3d)
    assert x.stride() == (360, 1, 90, 18, 3)
    with pytest.raises(RuntimeError, match="required rank 4 tensor"):
        torch.empty(2, 3, device="tpu", memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="unsupported memory format Preserve"):
        torch.empty(2, device="tpu", memory_format=torch.preserve_format)


def test_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.empty(1, device="tpu").dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_empty_strided():
    x = torch.empty_strided((2, 3), (1, 4), device="tpu")
    assert x.stride() == (1, 4)
    assert x.untyped_storage().nbytes() == 40
    with pytest.raises(RuntimeError, match="must match dimensionality of strides"):
        torch.empty_strided((2,), (1, 2), device="tpu")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: torch.empty(2, -1, device="tpu"), RuntimeError, "negative dimension -1"),
        (lambda: torch.empty(1 << 62, 8, device="tpu"), RuntimeError, "overflowed"),
        (
            lambda: torch.empty(1, dtype=torch.float8_e8m0fnu, device="tpu"),
            TypeError,
            "Float8_e8m0fnu is not supported on device tpu",
        ),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


# Addresses


def test_addresses_are_unique_and_aligned():
    tensors = [torch.empty(n, device="tpu") for n in (1, 3, 100, 1)]
    storages = [torch.UntypedStorage(0, device="tpu") for _ in range(2)]
    addresses = [t.data_ptr() for t in tensors]
    addresses += [torch.UntypedStorage(1, device="tpu").data_ptr()]
    assert len(set(addresses)) == len(addresses)
    assert all(address % 256 == 0 and address > 0 for address in addresses)
    assert storages[0]._cdata != storages[1]._cdata
    x = tensors[2]
    assert x[3:].data_ptr() == x.data_ptr() + 12
    assert x.untyped_storage().data_ptr() == x.data_ptr()


# Views


def test_views_share_the_storage():
    x = torch.empty(4, 6, device="tpu")
    cpu = torch.empty(4, 6)
    views = [
        lambda t: t.view(24),
        lambda t: t.t(),
        lambda t: t[1:, ::2],
        lambda t: t.as_strided((2, 2), (1, 4), 3),
        lambda t: t.unfold(1, 2, 3),
        lambda t: t.reshape(2, 12),
        lambda t: t[:, 1:3].expand(3, 4, 2),
        lambda t: t.view(torch.int32),
        lambda t: t.view(torch.int16),
        lambda t: t.detach(),
        lambda t: t.select(0, 2).unsqueeze(1),
        lambda t: t.diagonal(1),
        lambda t: torch.view_as_complex(t.view(4, 3, 2)),
        lambda t: torch.view_as_real(torch.view_as_complex(t.view(4, 3, 2))),
        lambda t: t.split(2)[1],
    ]
    for view in views:
        ours, theirs = view(x), view(cpu)
        assert ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()
        assert ours.dtype == theirs.dtype
        assert ours.storage_offset() == theirs.storage_offset()
        assert ours._is_view() == theirs._is_view()
        assert ours.untyped_storage()._cdata == x.untyped_storage()._cdata


def test_as_strided_checks_bounds():
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 24"):
        on_tpu().as_strided((7,), (1,))
    with pytest.raises(RuntimeError, match="not compatible"):
        on_tpu(6).view(2, 3).t().view(6)


# Storage.resize_


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_storage_resize_keeps_the_prefix(dtype):
    x = on_tpu(6, dtype)
    storage, item = x.untyped_storage(), x.element_size()
    old = storage.data_ptr()
    storage.resize_(10 * item)
    assert storage.nbytes() == 10 * item
    assert storage.data_ptr() != old
    assert x.cpu().equal(torch.arange(6, dtype=dtype))
    storage.resize_(4 * item)
    assert storage.nbytes() == 4 * item
    assert x[:4].cpu().equal(torch.arange(4, dtype=dtype))


def test_storage_resize_keeps_storage_order():
    x = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    order = torch.empty(0).set_(x.untyped_storage())
    y = x.to("tpu")
    assert y.stride() == x.stride()
    y.untyped_storage().resize_(200)
    flat = torch.empty(0, device="tpu").set_(y.untyped_storage(), 0, (24,), (1,))
    assert flat.cpu().equal(order)
    assert y.cpu().equal(x)


@pytest.mark.usefixtures("steady_memory")
def test_storage_freed_and_back():
    start = torch.accelerator.memory_allocated()
    x = on_tpu(1000)
    storage = x.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    assert storage.data_ptr() == 0  # what FSDP looks at
    assert torch.accelerator.memory_allocated() == start
    assert x.shape == (1000,)
    storage.resize_(4000)
    assert storage.data_ptr() != 0
    x.copy_(torch.arange(1000.0) + 1)
    assert x.cpu().equal(torch.arange(1000.0) + 1)


@pytest.mark.usefixtures("steady_memory")
def test_storage_of_uninitialised_memory_resizes_for_free():
    start = torch.accelerator.memory_allocated()
    x = torch.empty(10, device="tpu")
    x.untyped_storage().resize_(80)
    assert torch.accelerator.memory_allocated() == start
    assert x.untyped_storage().nbytes() == 80


def test_storage_too_large():
    x = on_tpu()
    with pytest.raises(torch.OutOfMemoryError):
        x.untyped_storage().resize_(1 << 50)
    assert x.untyped_storage().nbytes() == 24
    assert x.cpu().equal(torch.arange(6.0))


# Tensor.resize_


def test_resize():
    x = on_tpu()
    address = x.data_ptr()
    assert x.resize_(2, 2) is x
    assert x.data_ptr() == address  # smaller: nothing moves
    assert x.cpu().tolist() == [[0.0, 1.0], [2.0, 3.0]]
    x.resize_(3, 2)
    assert x.cpu().flatten().equal(torch.arange(6.0))
    x.resize_(4, 5)
    assert x.stride() == (5, 1)
    assert x.untyped_storage().nbytes() == 80
    assert x.cpu().flatten()[:6].equal(torch.arange(6.0))
    x.resize_(1, 2, 2, 2, memory_format=torch.channels_last)
    assert x.stride() == (8, 1, 4, 2)
    x.resize_(0)
    assert x.numel() == 0
    assert x.untyped_storage().nbytes() == 80
    with pytest.raises(RuntimeError, match="negative dimension"):
        x.resize_(-1)


def test_resize_of_a_view_keeps_its_offset():
    x = on_tpu(6)
    view = x[2:]
    view.resize_(8)
    assert view.storage_offset() == 2
    assert x.untyped_storage().nbytes() == 40
    assert view.cpu()[:4].tolist() == [2.0, 3.0, 4.0, 5.0]
    assert x.cpu().equal(torch.arange(6.0))


def test_resize_that_fails_changes_nothing():
    x = on_tpu()
    with pytest.raises(torch.OutOfMemoryError):
        x.resize_(1 << 50)
    assert x.shape == (6,)
    assert x.cpu().equal(torch.arange(6.0))


def test_resize_as():
    x = on_tpu()
    x.resize_as_(torch.empty(2, 3, device="tpu"))
    assert x.shape == (2, 3)


# set_


def test_set():
    x = on_tpu()
    y = torch.empty(0, device="tpu")
    assert y.set_(x) is y
    assert y.is_set_to(x)
    assert y.cpu().equal(torch.arange(6.0))
    y.set_(x.untyped_storage(), 2, (2, 2), (1, 2))
    assert not y.is_set_to(x)
    assert y.cpu().tolist() == [[2.0, 4.0], [3.0, 5.0]]
    y.set_(x.untyped_storage())
    assert y.shape == (6,)
    y.set_(x.untyped_storage(), 1, (3,))
    assert y.cpu().tolist() == [1.0, 2.0, 3.0]
    y.set_()
    assert y.shape == (0,)
    assert y.untyped_storage().nbytes() == 0
    assert x.cpu().equal(torch.arange(6.0))


def test_set_shares_writes():
    x = on_tpu()
    y = torch.empty(0, device="tpu").set_(x)
    y.copy_(torch.full((6,), 7.0))
    assert x.cpu().tolist() == [7.0] * 6


def test_set_grows_the_storage():
    x = on_tpu()
    y = torch.empty(0, device="tpu").set_(x.untyped_storage(), 0, (10,), (1,))
    assert y.untyped_storage().nbytes() == 40
    assert y.cpu()[:6].equal(torch.arange(6.0))


def test_set_with_wrong_arguments():
    x = torch.empty(4, device="tpu")
    small = torch.empty(3, device="tpu").untyped_storage()
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 12"):
        x.set_(small, 0, (4,), (1,))
    with pytest.raises(RuntimeError, match="invalid storage offset"):
        x.set_(small, -1, (1,), (1,))
    with pytest.raises(RuntimeError, match="unequal size length"):
        x.set_(small, 0, (1, 1), (1,))
    with pytest.raises(RuntimeError, match="different device"):
        x.set_(torch.empty(4).untyped_storage())
    assert x.shape == (4,)


# Bytes


def test_storage_as_bytes():
    x = on_tpu()
    storage = x.untyped_storage()
    assert storage.device == torch.device("tpu", 0)
    expected = torch.arange(6.0).untyped_storage()
    assert storage.cpu().tolist() == expected.tolist()
    raw = torch.empty(0, dtype=torch.uint8, device="tpu").set_(storage)
    assert raw.cpu().tolist() == expected.tolist()
    other = torch.UntypedStorage(24, device="tpu")
    other.copy_(storage)
    y = torch.empty(0, device="tpu").set_(other)
    assert y.cpu().equal(torch.arange(6.0))


def test_deepcopy_keeps_sharing():
    x = on_tpu()
    pair = copy.deepcopy({"base": x, "same": x})
    assert pair["base"] is pair["same"]
    assert pair["base"].cpu().equal(x.cpu())
    pair["base"].copy_(torch.zeros(6))
    assert x.cpu().equal(torch.arange(6.0))


def test_save_and_load():
    x = on_tpu(12).view(3, 4)
    file = io.BytesIO()
    torch.save({"x": x, "column": x[:, 1]}, file)
    for location in ("tpu", "tpu:0", torch.device("tpu"), "cpu", None):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert loaded["x"].device.type == ("cpu" if location == "cpu" else "tpu")
        assert loaded["x"].cpu().equal(torch.arange(12.0).view(3, 4))
        assert loaded["column"].cpu().tolist() == [1.0, 5.0, 9.0]
        assert loaded["column"].untyped_storage()._cdata == loaded["x"].untyped_storage()._cdata
