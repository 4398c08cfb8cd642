"""Export: whatever a manifest says, a load gives the model's results or an error that names what is
wrong. Nothing else is read, and nothing crashes."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from export_models import (
    MLP,
    Counter,
    Lookup,
    Noise,
    Scaled,
    change_manifest,
    export_mlp,
    manifest_of,
    randn,
)

import torch_tpu

MODELS: dict[str, tuple[Callable[[], torch.nn.Module], torch.Tensor]] = {
    "mlp": (MLP, randn(2, 6)),
    "counter": (Counter, randn(2, 3)),
    "noise": (Noise, torch.zeros(8)),
    "lookup": (Lookup, torch.tensor([1, 4])),
    "scaled": (Scaled, randn(4)),
}


@pytest.fixture(scope="module", params=MODELS)
def exported(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    folder = tmp_path_factory.mktemp("export") / request.param
    model, x = MODELS[request.param]
    torch_tpu.export(model().eval(), (x.clone(),), path=folder)
    return folder, x


@pytest.fixture
def changed(exported: tuple[Path, torch.Tensor], tmp_path: Path) -> Path:
    return shutil.copytree(exported[0], tmp_path / "changed")


def values_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    (program,) = manifest["programs"]
    return [*program["arguments"], *program["results"]]


def text_of(value: dict[str, Any]) -> str:
    return f"{value['dtype']}[{','.join(map(str, value['shape']))}]"


SAME_SIZE = {"float32": "int32", "int64": "uint64", "uint64": "int64"}


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(shape=[*value["shape"], 1]),
        lambda value: value.update(shape=[100_000, 100_000]),
        lambda value: value.update(shape=[2**62, 2**62]),
        lambda value: value.update(shape=[]) if value["shape"] else value.update(shape=[3]),
        lambda value: value.update(dtype=SAME_SIZE[value["dtype"]]),
        lambda value: value.update(dtype="float64"),
    ],
)
def test_every_type_is_compared_with_the_module(changed: Path, change: Any) -> None:
    """Of inputs, weights, states, random states, results, writes and checks."""
    count = len(values_of(manifest_of(changed)))
    original = (changed / "manifest.json").read_text()
    for number in range(count):
        data = json.loads(original)
        value = values_of(data)[number]
        before = text_of(value)
        change(value)
        (changed / "manifest.json").write_text(json.dumps(data))
        with pytest.raises(ValueError, match="manifest") as error:
            torch_tpu.load(changed)
        told = str(error.value)
        assert value["name"] in told
        dtype_of_an_input = value["kind"] == "input" and value["dtype"] not in before
        if not dtype_of_an_input:  # which the manifest says twice
            assert before in told
            assert text_of(value) in told


def test_states_that_agree_with_each_other_only(tmp_path: Path) -> None:
    torch_tpu.export(Counter(), (randn(2, 3),), path=tmp_path / "counter")
    data = manifest_of(tmp_path / "counter")
    for value in values_of(data):
        if value["kind"] == "state":
            value["shape"] = [3, 2]
    change_manifest(tmp_path / "counter", **data)
    text = r"the state 'count' of module.mlir as float32\[3,2\]; in the module it is float32\[2,3\]"
    with pytest.raises(ValueError, match=text):
        torch_tpu.load(tmp_path / "counter")


def test_strides_must_be_dense(tmp_path: Path) -> None:
    folder = export_mlp(tmp_path / "mlp")
    for strides, fits in (([3, 1], True), ([1, 2], True), ([1000, 1], False), ([1, 1], False)):
        data = manifest_of(folder)
        data["programs"][0]["results"][0]["strides"] = strides
        change_manifest(folder, **data)
        if fits:
            y = torch_tpu.load(folder)(randn(2, 6).to("tpu"))
            assert list(y.stride()) == strides
            torch.manual_seed(0)
            torch.testing.assert_close(y.cpu(), MLP().eval()(randn(2, 6)), check_stride=False)
        else:
            with pytest.raises(ValueError, match="strides"):
                torch_tpu.load(folder)


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(data, (dict, list)):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from leaves(data[key], (*path, key))


def replaced(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    out = dict(data) if isinstance(data, dict) else list(data)
    out[path[0]] = replaced(data[path[0]], path[1:], value)
    return out


def test_any_field_may_be_wrong(changed: Path, exported: tuple[Path, torch.Tensor]) -> None:
    data = manifest_of(changed)
    rng = random.Random(0)
    odd = [None, -1, 2**70, 1, "x", "..", "\0", [], {}, [None], True, 0.5, {"tensor": 0}, "random"]
    x = exported[1]
    torch.manual_seed(3)
    expected = torch_tpu.load(exported[0])(x.to("tpu")).cpu()
    for path in leaves(data):
        for value in rng.sample(odd, 5):
            text = json.dumps(replaced(data, path, value))
            (changed / "manifest.json").write_text(text)
            try:
                loaded = torch_tpu.load(changed)
            except (ValueError, FileNotFoundError, RuntimeError) as error:
                assert str(changed) in str(error), (path, value)  # noqa: PT017
                continue
            torch.manual_seed(3)
            try:
                result = loaded(x.to("tpu"))
            except (TypeError, RuntimeError):  # called with another name, or otherwise
                continue
            if isinstance(result, torch.Tensor) and "draws" not in path:
                torch.testing.assert_close(result.cpu(), expected)


# Files


def test_weights_may_have_another_name(tmp_path: Path) -> None:
    folder = export_mlp(tmp_path / "mlp")
    x = randn(2, 6).to("tpu")
    expected = torch_tpu.load(folder)(x)
    (folder / "model.safetensors").rename(folder / "tuned.safetensors")
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors is missing"):
        torch_tpu.load(folder)
    change_manifest(folder, weights="tuned.safetensors")
    assert torch.equal(torch_tpu.load(folder)(x), expected)
    for name in ("../mlp/tuned.safetensors", "", "..", str(folder / "tuned.safetensors"), 3):
        change_manifest(folder, weights=name)
        with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
            torch_tpu.load(folder)
    data = manifest_of(folder)
    del data["weights"]
    (folder / "manifest.json").write_text(json.dumps(data))
    (folder / "tuned.safetensors").rename(folder / "model.safetensors")
    assert torch.equal(torch_tpu.load(folder)(x), expected)


@pytest.mark.parametrize("name", ["manifest.json", "module.mlir", "model.safetensors"])
def test_a_pipe_or_a_folder_in_place_of_a_file(tmp_path: Path, name: str) -> None:
    folder = export_mlp(tmp_path / "mlp")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises((ValueError, FileNotFoundError), match="mlp"):
        torch_tpu.load(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises((ValueError, FileNotFoundError), match="mlp"):
        torch_tpu.load(folder)


@pytest.mark.parametrize("name", ["manifest.json", "module.mlir", "model.safetensors"])
def test_a_huge_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = export_mlp(tmp_path / "mlp")
    os.truncate(folder / name, 1 << 40)
    with pytest.raises(ValueError, match=name):
        torch_tpu.load(folder)


def test_weights_that_change_after_the_load(tmp_path: Path, run_python: Any) -> None:
    """They were mapped: a truncated file ended the process (SIGBUS)."""
    folder = export_mlp(tmp_path / "mlp")
    out = run_python(
        f"""
        import os, torch, torch_tpu
        path = {str(folder / "model.safetensors")!r}
        x = torch.ones(2, 6, device="tpu")
        model = torch_tpu.load({str(folder)!r})
        expected = model(x).cpu()
        raw = open(path, "rb").read()
        with open(path, "r+b") as file:
            file.seek(len(raw) // 2)
            file.write(bytes(len(raw) - len(raw) // 2))
        assert torch.equal(model(x).cpu(), expected)
        os.truncate(path, 0)
        assert torch.equal(model(x).cpu(), expected)
        assert all(t.isfinite().all() for t in model.state_dict().values())
        print("alive")
        """
    )
    assert out == "alive\n"
