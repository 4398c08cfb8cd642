"""Other libraries and processes: NumPy, printing, DataLoader, processes, nn.Module."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import torch_tpu


def on_tpu(count: int = 6) -> torch.Tensor:
    return torch.arange(float(count)).to("tpu")


def programs_run() -> int:
    stats = torch_tpu.stats()
    return stats["hits"] + stats["misses"]


# NumPy


@pytest.mark.parametrize("convert", [torch.Tensor.numpy, np.asarray, np.array])
def test_numpy_refuses_as_for_cuda(convert):
    with pytest.raises(TypeError, match="can't convert tpu:0 device type tensor to numpy"):
        convert(on_tpu())


def test_numpy_by_way_of_the_host():
    x = on_tpu().requires_grad_()
    assert x.numpy(force=True).tolist() == list(range(6))
    assert np.asarray(x.detach().cpu()).dtype == np.float32
    assert torch.as_tensor(np.arange(3), device="tpu").tolist() == [0, 1, 2]
    assert torch.tensor(np.float32(2.5), device="tpu").item() == 2.5
    assert torch.from_numpy(np.ones((2, 2), np.float32)).to("tpu").sum().item() == 4


def test_numpy_arrays_are_copies():
    x = on_tpu()
    clone = x.clone()
    array = x.numpy(force=True)
    array += 5
    assert x.tolist() == clone.tolist() == list(range(6))
    source = np.arange(3.0)
    from_array = torch.from_numpy(source).to("tpu")
    source[:] = 9
    assert from_array.tolist() == [0, 1, 2]


def test_item_tolist_and_friends():
    x = on_tpu()
    assert x.tolist() == list(range(6))
    assert x.reshape(2, 3).t().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (float(x[2]), int(x[3]), bool(x[0]), x[5].item()) == (2.0, 3, False, 5.0)
    assert [1, 2, 3][torch.tensor(1).to("tpu")] == 2
    assert f"{x[1]:.2f}" == "1.00"
    assert 4 in x
    assert len(x) == 6
    assert sum(v.item() for v in x) == 15
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        x.item()
    assert torch.tensor([], device="tpu").tolist() == []


def test_tensor_from_tensors():
    assert torch.tensor([on_tpu()[1], on_tpu()[2]]).tolist() == [1.0, 2.0]


# Printing


@pytest.mark.parametrize(
    ("host", "suffix"),
    [
        (torch.tensor([1.0, 2.5]), ""),
        (torch.tensor(3), ""),
        (torch.tensor([True, False]), ""),
        (torch.arange(5000.0).reshape(50, 100), ""),
        (torch.tensor([1 + 2j, 3 - 1j]), ""),
        (torch.tensor([1.5], dtype=torch.bfloat16), ", dtype=torch.bfloat16"),
        (torch.zeros(0, 3), ", size=(0, 3)"),
    ],
)
def test_print(host, suffix):
    text = repr(host).removesuffix(")").removesuffix(suffix)
    expected = f"{text}, device='tpu:0'{suffix})"
    assert repr(host.to("tpu")).replace("\n       ", " ") == expected.replace("\n       ", " ")


def test_print_names_gradients():
    x = on_tpu(2).requires_grad_()
    assert repr(x) == "tensor([0., 1.], device='tpu:0', requires_grad=True)"
    assert repr(x * 2) == "tensor([0., 2.], device='tpu:0', grad_fn=<MulBackward0>)"
    assert "Parameter containing" in repr(torch.nn.Parameter(on_tpu(2)))
    assert f"{x[1]}" == "1.0"


def test_print_is_one_transfer_and_no_program(monkeypatch):
    x = torch.randn(100, 100).to("tpu")
    x.cpu()
    copies = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: copies.append(t) or cpu(t))
    before = programs_run()
    repr(x)
    assert len(copies) == 1
    assert programs_run() == before


def nested_vmap(x):
    return torch.vmap(torch.vmap(lambda row: row * 2 + 1))(x)


def test_an_error_while_printing_leaves_nothing_behind():
    x = torch.arange(24.0).reshape(2, 3, 4)
    wrong = torch.zeros(3, device="tpu")[torch.tensor([5], device="tpu")]
    with pytest.raises(IndexError) as kept:  # its traceback has torch's frames
        repr(wrong)
    torch.testing.assert_close(nested_vmap(x.to("tpu")).cpu(), nested_vmap(x))
    assert "index 5" in str(kept.value)


def test_a_wrapper_of_a_transform_that_is_off_is_an_error():
    x = torch.zeros(2, 3, 4, device="tpu")
    with (
        torch._C._DisableFuncTorch(),
        pytest.raises(NotImplementedError, match="storage of BatchedTensorImpl"),
    ):
        nested_vmap(x)
    assert nested_vmap(x).sum().item() == 24


def test_print_lazy_bits():
    x = torch.tensor([1 + 2j]).to("tpu")
    assert "1.-2.j" in repr(x.conj())
    assert "-2." in repr(x.conj().imag)


# Processes


class Squares(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index)), index * index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
def test_data_loader(workers, pin):
    on_tpu().sum().item()  # the client runs: workers are forked from a process that uses the device
    loader = DataLoader(Squares(), batch_size=4, num_workers=workers, pin_memory=pin)
    total = 0
    for x, y in loader:
        assert x.is_pinned() == pin
        total += (x.to("tpu", non_blocking=True)[:, 0] * y.to("tpu", non_blocking=True)).sum()
    assert total.item() == sum(i**3 for i in range(16))


def test_data_loader_pin_memory_device():
    loader = DataLoader(Squares(), batch_size=8, pin_memory=True, pin_memory_device="tpu")
    with pytest.warns(UserWarning, match="pin_memory_device is deprecated"):
        batches = list(loader)
    assert all(x.is_pinned() for x, _ in batches)


def test_data_loader_over_device_tensors():
    data = TensorDataset(on_tpu(8).reshape(8, 1), torch.arange(8).to("tpu"))
    loader = DataLoader(
        data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(0)
    )
    seen = [value for _, y in loader for value in y.tolist()]
    assert sorted(seen) == list(range(8))


def worker_seed(_: int) -> None:
    torch.manual_seed(1)


def test_data_loader_worker_may_seed():
    on_tpu().sum().item()
    loader = DataLoader(Squares(), batch_size=8, num_workers=1, worker_init_fn=worker_seed)
    assert len(list(loader)) == 2


def test_worker_that_uses_the_device_gets_a_clear_error():
    on_tpu().sum().item()

    class OnDevice(Squares):
        def __getitem__(self, index: int):
            return torch.ones(2, device="tpu")

    with pytest.raises(RuntimeError, match="forked subprocess"):
        list(DataLoader(OnDevice(), num_workers=1))


@pytest.mark.parametrize(
    "value", [on_tpu(), torch.nn.Parameter(on_tpu()), on_tpu().untyped_storage()]
)
def test_sending_to_another_process_is_refused(value):
    with pytest.raises(RuntimeError, match="Cannot send a tpu tensor to another process"):
        ForkingPickler.dumps(value)
    host = ForkingPickler.dumps(torch.ones(2))
    assert len(host) > 0


def test_share_memory_changes_nothing():
    x = on_tpu()
    assert x.share_memory_() is x
    if torch.__version__ >= "2.13":  # before, only tensors of CUDA say so
        assert x.is_shared()


# nn.Module


def test_module_to_keeps_parameters_and_ties():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("scale", torch.ones(3))
    weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to("tpu")
    assert model[0].weight is weight
    assert model[1].weight is weight
    assert weight.is_tpu
    assert model.scale.is_tpu
    model(torch.tensor([1, 2]).to("tpu")).sum().backward()
    before = weight.detach().cpu()
    optimizer.step()
    assert not torch.equal(weight.detach().cpu(), before)
    model.to("cpu")
    assert model[1].weight is weight
    assert weight.device.type == "cpu"
    assert weight.grad.device.type == "cpu"


def test_module_conversions():
    model = torch.nn.Linear(3, 2).to("tpu", torch.bfloat16)
    assert model.weight.dtype == torch.bfloat16
    assert model.weight.is_tpu
    assert model.float().weight.dtype == torch.float32
    assert torch.nn.Linear(3, 2, device="tpu").weight.is_tpu
    with torch.device("tpu"):
        assert torch.nn.Linear(3, 2).weight.is_tpu
    empty = torch.nn.Linear(3, 2, device="meta").to_empty(device="tpu")
    assert empty.weight.is_tpu
    vector = torch.nn.utils.parameters_to_vector(model.parameters())
    assert vector.shape == (8,)


def test_default_device():
    torch.set_default_device("tpu")
    try:
        assert torch.ones(2).is_tpu
        assert torch.tensor([1.0]).is_tpu
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"
