"""Saving, loading, pickling and copying tensors and modules."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import torch_tpu

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def saved(value, **kwargs) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **kwargs)
    file.seek(0)
    return file


def sample(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(6).reshape(2, 3).to(dtype)


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, device: str = "tpu:0") -> None:
    assert ours.device == torch.device(device)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours.cpu(), theirs.cpu())


# torch.save and torch.load


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(dtype):
    host = sample(dtype)
    assert_same(torch.load(saved(host.to("tpu"))), host)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("weights_only", [True, False])
def test_formats(zipped, weights_only):
    file = saved(sample().to("tpu"), _use_new_zipfile_serialization=zipped)
    assert_same(torch.load(file, weights_only=weights_only), sample())


@pytest.mark.parametrize("location", ["cpu", torch.device("cpu"), {"tpu:0": "cpu"}])
def test_from_tpu_to_cpu(location):
    loaded = torch.load(saved(sample().to("tpu")), map_location=location)
    assert_same(loaded, sample(), "cpu")


@pytest.mark.parametrize(
    "location", ["tpu", "tpu:0", torch.device("tpu"), lambda storage, _: storage.tpu()]
)
def test_from_cpu_to_tpu(location):
    weights_only = not callable(location)
    file = saved(sample())
    assert_same(torch.load(file, map_location=location, weights_only=weights_only), sample())


def test_mapped_file(tmp_path):
    path = tmp_path / "x.pt"
    torch.save(sample(), path)
    assert_same(torch.load(path, map_location="tpu", mmap=True), sample())


def test_device_that_does_not_exist():
    with pytest.raises(RuntimeError, match="device_count"):
        torch.load(saved(sample()), map_location="tpu:63")


def test_device_of_another_machine(run_python, tmp_path):
    """A file saved with several devices loads where there is one, by map_location."""
    path = tmp_path / "x.pt"
    run_python(
        f"import torch; torch.save(torch.arange(6.0).to('tpu:1'), {str(path)!r})",
        TORCH_TPU_CPU_DEVICES="2",
    )
    with pytest.raises(RuntimeError, match="map_location"):
        torch.load(path)
    assert_same(torch.load(path, map_location={"tpu:1": "tpu:0"}), torch.arange(6.0))


def test_views_still_share_their_storage():
    base = torch.zeros(4, 3).to("tpu")
    loaded = torch.load(saved([base, base[1:3], base.t()]))
    loaded[0][1] = 5.0
    assert loaded[1].cpu()[0].tolist() == [5.0] * 3
    assert loaded[2].cpu()[:, 1].tolist() == [5.0] * 3


def test_strides_and_flags():
    host = torch.arange(24.0).reshape(2, 3, 2, 2)
    channels_last = host.to("tpu", memory_format=torch.channels_last).requires_grad_()
    loaded = torch.load(saved(channels_last))
    assert loaded.stride() == channels_last.stride()
    assert loaded.requires_grad
    assert_same(loaded.detach(), host)


def test_module_and_optimizer():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to("tpu")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 4, device="tpu")).sum().backward()
    optimizer.step()
    file = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    state = torch.load(file, map_location="cpu")
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to("tpu")
    other_optimizer = torch.optim.Adam(other.parameters())
    other.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["optimizer"])
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert_same(ours, theirs)
        assert_same(other_optimizer.state[ours]["exp_avg"], optimizer.state[theirs]["exp_avg"])


@pytest.mark.parametrize(
    "load",
    [
        lambda host: torch.load(saved(host), map_location="tpu"),
        lambda host: torch.load(saved(host, _use_new_zipfile_serialization=False), "tpu"),
        lambda host: torch.load(saved(host.to("tpu"))),
        lambda host: pickle.loads(pickle.dumps(host.to("tpu"))),
        lambda host: copy.deepcopy(host.to("tpu")),
    ],
)
def test_loaded_weights_run_the_same_programs(load):
    """A loaded weight is an array of its own dtype, not bytes that every program converts."""
    host = torch.arange(12.0).reshape(3, 4)
    moved = host.to("tpu")
    loaded = load(host)
    (moved @ moved.t()).cpu()
    before = torch_tpu.stats()["misses"]
    (loaded @ loaded.t()).cpu()
    (loaded @ loaded.t()).cpu()
    assert torch_tpu.stats()["misses"] == before


# pickle and copy


@pytest.mark.parametrize("dtype", DTYPES)
def test_pickle(dtype):
    assert_same(pickle.loads(pickle.dumps(sample(dtype).to("tpu"))), sample(dtype))


def test_pickle_module():
    model = torch.nn.Linear(3, 2).to("tpu")
    other = pickle.loads(pickle.dumps(model))
    assert isinstance(other.weight, torch.nn.Parameter)
    assert_same(other.weight, model.weight)


def test_pickle_generator_state_and_device():
    assert pickle.loads(pickle.dumps(torch.device("tpu:0"))) == torch.device("tpu:0")
    state = pickle.loads(pickle.dumps(torch.tpu.get_rng_state()))
    torch.tpu.set_rng_state(state)


def test_deepcopy_is_independent():
    x = sample().to("tpu").requires_grad_()
    y = copy.deepcopy(x)
    assert y.requires_grad
    assert_same(y.detach(), sample())
    with torch.no_grad():
        y += 1
    assert torch.equal(x.detach().cpu(), sample())


def test_deepcopy_module_keeps_ties():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to("tpu")
    model[1].weight = model[0].weight
    other = copy.deepcopy(model)
    assert other[0].weight is other[1].weight
    assert other[0].weight is not model[0].weight
    assert_same(other[0].weight, model[0].weight)


def test_deepcopy_runs_no_program():
    model = torch.nn.Linear(64, 64).to("tpu")
    before = torch_tpu.stats()
    other = copy.deepcopy(model)
    after = torch_tpu.stats()
    assert after["hits"] + after["misses"] == before["hits"] + before["misses"]
    assert_same(other.weight, model.weight)


def test_copy_shares():
    x = sample().to("tpu")
    y = copy.copy(x)
    y[0, 0] = 9
    assert x[0, 0].item() == 9


# Storages


def test_storage():
    storage = sample().to("tpu").untyped_storage()
    assert storage.device == torch.device("tpu", 0)
    assert bytes(storage.cpu()) == bytes(sample().untyped_storage())
    assert bytes(storage.clone().cpu()) == bytes(storage.cpu())
    assert storage[6] == sample().untyped_storage()[6]
    with pytest.raises(RuntimeError, match="cannot share its memory"):
        storage[2:4]
    made = torch.UntypedStorage(8, device="tpu")
    made.copy_(torch.arange(8, dtype=torch.uint8).untyped_storage())
    assert made.tolist() == list(range(8))
    made.fill_(3)
    assert made.cpu().tolist() == [3] * 8
    assert copy.deepcopy(made).tolist() == [3] * 8
