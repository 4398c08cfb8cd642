"""Safetensors files: against the safetensors package, in place where possible, when damaged."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from torch_tpu import _C
from torch_tpu.safetensors import SafetensorsError, load_file, safe_open, save_file

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
in_host_memory = pytest.mark.skipif(
    torch.tpu.get_device_properties().platform_kind != "cpu", reason="device memory is not host's"
)


def weights() -> dict[str, torch.Tensor]:
    return {
        "scalar": torch.tensor(3.0),
        "odd": torch.arange(5, dtype=torch.uint8),
        "half": torch.arange(7, dtype=torch.float32).to(torch.bfloat16),
        "big": torch.arange(4096.0).reshape(64, 64),
        "none": torch.zeros(0, 4),
        "long": torch.arange(32),
    }


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert set(ours) == set(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert tensor.shape == theirs[name].shape
        assert torch.equal(tensor.cpu(), theirs[name].cpu()), name


# Reading and writing


def test_round_trip(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({name: tensor.to("tpu") for name, tensor in weights().items()}, path)
    loaded = load_file(path)
    assert all(tensor.device == torch.device("tpu", 0) for tensor in loaded.values())
    assert_same(loaded, weights())
    assert_same(safetensors.torch.load_file(path), weights())
    assert os.listdir(tmp_path) == ["w.safetensors"]


def test_file_of_the_package(tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(weights(), path, metadata={"format": "pt"})
    assert_same(load_file(str(path), device="tpu:0"), weights())
    assert_same(load_file(path, device=0), weights())
    on_cpu = load_file(path, device="cpu")
    assert_same(on_cpu, weights())
    assert all(tensor.device.type == "cpu" for tensor in on_cpu.values())


@pytest.mark.parametrize("device", ["tpu", "tpu:0", torch.device("tpu"), 0])
def test_the_package_loads_to_the_device(tmp_path, device):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(weights(), path, metadata={"format": "pt"})
    loaded = safetensors.torch.load_file(path, device=device)
    assert_same(loaded, weights())
    assert all(tensor.device == torch.device("tpu", 0) for tensor in loaded.values())
    for opened in (
        safetensors.safe_open(path, "pt", device),
        safetensors.safe_open(path, framework="pt", device=device),
    ):
        with opened as file:
            assert file.metadata() == {"format": "pt"}
            assert set(file.keys()) == set(weights())
            assert file.get_tensor("big").device.type == "tpu"
            part = file.get_slice("big")
            assert part.get_shape() == [64, 64]
            assert part[2:5, ::8].device.type == "tpu"
            assert torch.equal(part[2:5, ::8].cpu(), weights()["big"][2:5, ::8])
    model = torch.nn.Linear(64, 64, bias=False).to("tpu")
    safetensors.torch.save_model(model, str(path))
    other = torch.nn.Linear(64, 64, bias=False).to("tpu")
    safetensors.torch.load_model(other, path, device=str(torch.device(device)))
    assert torch.equal(other.weight, model.weight)


def test_the_package_is_otherwise_as_it_was(tmp_path, run_python):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file({"a": torch.ones(2)}, path)
    assert safetensors.torch.load_file(path)["a"].device.type == "cpu"
    assert isinstance(safetensors.safe_open(path, "pt"), safetensors.safe_open)
    assert isinstance(safetensors.safe_open(path, "np").get_tensor("a").tolist(), list)
    for device in ("tpus", "tpu:x", "", "nowhere"):
        with pytest.raises(safetensors.SafetensorError, match="is invalid"):
            safetensors.safe_open(path, "pt", device=device)
    with pytest.raises(FileNotFoundError):
        safetensors.safe_open(tmp_path / "none", "pt", device="tpu")
    with pytest.raises(safetensors.SafetensorError, match="b"):
        safetensors.safe_open(path, "pt", device="tpu").get_tensor("b")
    # Before or after torch, found first or not: the same signature, and all names are completed.
    shown = "import inspect; print(inspect.signature(safetensors.safe_open))"
    plain = run_python(f"import safetensors\n{shown}", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    use = f"safe_open({str(path)!r}, 'pt', device='tpu').get_tensor('a').device.type"
    late = "import torch, safetensors.torch; from safetensors import safe_open; import torch_tpu"
    assert run_python(f"{late}\nprint({use})", TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "tpu\n"
    for imports in (
        "import safetensors.torch; from safetensors import safe_open; import torch, torch_tpu",
        "import torch, torch_tpu, safetensors; from safetensors import safe_open",
        "import torch, torch_tpu, importlib.util; importlib.util.find_spec('safetensors')\n"
        "import safetensors; from safetensors import safe_open",
    ):
        assert run_python(f"{imports}\n{shown}\nprint({use})") == f"{plain}tpu\n"


def test_the_package_loads_to_a_second_device(tmp_path, run_python):
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.ones(2)}, path)
    code = f"""
        import torch, torch_tpu, safetensors.torch
        print(safetensors.torch.load_file({str(path)!r}, device="tpu:1")["a"].device)
        """
    assert run_python(code, TORCH_TPU_CPU_DEVICES="2") == "tpu:1\n"


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(tmp_path, dtype):
    path = tmp_path / "w.safetensors"
    save_file({"x": torch.arange(6).to(dtype).reshape(2, 3)}, path)
    raw = torch.arange(6).to(dtype).reshape(2, 3).view(torch.uint8)
    assert torch.equal(load_file(path, device="cpu")["x"].view(torch.uint8), raw)
    assert torch.equal(safetensors.torch.load_file(path)["x"].view(torch.uint8), raw)
    loaded = load_file(path)["x"]
    assert loaded.dtype == dtype
    assert torch.equal(loaded.cpu().view(torch.uint8), raw)


def test_views_are_written_as_they_look(tmp_path):
    path = tmp_path / "w.safetensors"
    x = torch.arange(12.0).reshape(3, 4).to("tpu")
    save_file({"t": x.t(), "row": x[1], "same": x}, path)
    loaded = load_file(path)
    assert_same(loaded, {"t": x.t(), "row": x[1], "same": x})
    assert loaded["t"].is_contiguous()


def test_safe_open(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(weights(), path, metadata={"made by": "us"})
    with safe_open(path, framework="pt", device="tpu") as file:
        assert set(file.keys()) == set(file) == set(weights())
        assert file.metadata() == {"made by": "us"}
        assert torch.equal(file.get_tensor("big").cpu(), weights()["big"])
        part = file.get_slice("big")
        assert part.get_shape() == [64, 64]
        assert part.get_dtype() == "F32"
        assert torch.equal(part[3:5, ::2].cpu(), weights()["big"][3:5, ::2])
        assert part[:, 1].is_tpu
        with pytest.raises(SafetensorsError, match="no tensor 'other'"):
            file.get_tensor("other")
    with pytest.raises(SafetensorsError, match="is closed"):
        file.get_tensor("big")
    with pytest.raises(ValueError, match="expected framework 'pt'"):
        safe_open(path, framework="np")


def test_module(tmp_path):
    path = tmp_path / "w.safetensors"
    model = torch.nn.Linear(16, 16).to("tpu")
    save_file(model.state_dict(), path)
    other = torch.nn.Linear(16, 16, device="meta")
    other.load_state_dict(load_file(path), assign=True)
    x = torch.ones(2, 16).to("tpu")
    assert torch.equal(other(x).cpu(), model(x).cpu())
    other(x).sum().backward()
    torch.optim.SGD(other.parameters(), lr=1.0).step()  # writes a new value, not the file
    assert_same(load_file(path), model.state_dict())


@in_host_memory
def test_weights_are_read_in_place(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.ones(3), "w": torch.ones(1024, 1024)}, path)
    loaded = load_file(path)
    address = _C._to_host_zero_copy(loaded["w"]).data_ptr()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        lines = [line for line in maps if line.rstrip().endswith(str(path))]
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    assert any(start <= address < stop for start, stop in ranges)
    del loaded
    with open("/proc/self/maps", encoding="utf-8") as maps:
        assert str(path) not in maps.read()


def test_wrong_arguments(tmp_path):
    path = tmp_path / "w.safetensors"
    for tensors, message in [
        ({"x": 1}, "expected a tensor"),
        ({"x": torch.eye(2).to_sparse()}, "sparse"),
        ({"x": torch.ones(2, dtype=torch.complex128)}, "no torch.complex128"),
        ({"__metadata__": torch.ones(2)}, "cannot be the name"),
    ]:
        with pytest.raises(ValueError, match=message):
            save_file(tensors, path)
    with pytest.raises(ValueError, match="text to text"):
        save_file({"x": torch.ones(2)}, path, metadata={"step": 3})
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "missing.safetensors")
    with pytest.raises(FileNotFoundError):
        save_file({"x": torch.ones(2)}, tmp_path / "no folder" / "w.safetensors")


# Damaged files


def write(path: Path, header: object, data: bytes = b"\0" * 16) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: object = "F32", shape: object = (4,), offsets: object = (0, 16)) -> dict:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"not json", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no JSON object"),
        (b'{"x": {}, "x": {}}', "occurs twice"),
        ({"x": 3}, "no JSON object"),
        ({"__metadata__": {"a": 1}}, "text to text"),
        (entry(dtype="F33"), "dtype 'F33'"),
        (entry(dtype=3), "dtype 3"),
        (entry(shape=[-4]), "shape"),
        (entry(shape=[4.0]), "shape"),
        (entry(shape="4"), "shape"),
        (entry(shape=[2**40, 2**40]), "takes"),
        (entry(shape=[5]), "takes 20 bytes, in 16 bytes"),
        (entry(offsets=[0]), "offsets"),
        (entry(offsets=[16, 0]), "offsets"),
        (entry(offsets=[-16, 0]), "offsets"),
        (entry(offsets=[4, 20]), "leaves a hole"),
        (entry(shape=[8], offsets=[0, 32]), "cut off"),
        (entry(shape=[2], offsets=[0, 8]), "belong to no tensor"),
        ({**entry(), "y": entry()["x"]}, "overlaps"),
    ],
)
def test_damaged_header(tmp_path, header, message):
    path = write(tmp_path / "bad.safetensors", header)
    with pytest.raises(SafetensorsError, match=message) as raised:
        load_file(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 1 << 60) + b"{}"])
def test_not_such_a_file(tmp_path, data):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(SafetensorsError, match=r"no safetensors file"):
        load_file(path)


def test_every_cut_is_noticed(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"x": torch.arange(8.0)}, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SafetensorsError):
            load_file(path)


def test_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_file({"x": torch.ones(2)}, path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        save_file({"x": torch.zeros(2)}, path)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["w.safetensors"]
    assert load_file(path)["x"].tolist() == [1.0, 1.0]
