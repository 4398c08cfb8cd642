"""The manifest of an export: what the folder holds and what the modules' arguments and results are.
Described for other programs in docs/export.md. Folders come from anywhere, so what is read is
checked before it is used."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_tpu._export import trees
from torch_tpu._export.trees import Tree

FORMAT = "torch_tpu.export"
VERSION = 1
MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
TARGETS = ("any", "cpu", "cuda", "tpu")

ARGUMENT_KINDS = ("weight", "state", "input", "random")
RESULT_KINDS = ("state", "output", "input", "check")
_CHECKS = ("index", "value", "matrix", "batch")
_MOST_MANIFEST_BYTES = 256 << 20
_MOST_MODULE_BYTES = 2 << 30  # what the compilers take
_MOST_SIZE = 2**63 - 1


class ExportFileError(ValueError):
    """A folder that is no export, is damaged, or is of a newer version."""


@dataclass
class Value:
    """An argument or a result of a module. Arrays are dense and row-major.

    As an argument: a `weight` or a `state` (a weight that calls replace) is the tensor `name` of
    the weights' file, an `input` the one of number `index`, `random` the seed and offset of a
    random stream. As a result: the new contents of the argument `index` (a `state` or an `input`),
    the output of number `index`, or the flag of a `check`, the least int64 when all is well.
    """

    kind: str
    name: str
    dtype: torch.dtype
    shape: list[int]
    index: int = -1
    strides: list[int] | None = None  # of the tensor PyTorch would return, where not row-major
    check: str = ""  # the kind of check; its text is the name

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": self.kind, "name": self.name}
        if self.index >= 0:
            out["index"] = self.index
        if self.check:
            out["check"] = self.check
        if self.strides is not None:
            out["strides"] = self.strides
        return {**out, "dtype": dtype_name(self.dtype), "shape": self.shape}


@dataclass
class Program:
    """A module and what goes in and out."""

    module: str  # the name of the file
    sha256: str
    arguments: list[Value]
    results: list[Value]
    draws: int = 0  # by which a call advances the offset of the random stream

    def to_json(self) -> dict[str, Any]:
        return {
            "module": self.module,
            "sha256": self.sha256,
            "draws": self.draws,
            "arguments": [value.to_json() for value in self.arguments],
            "results": [value.to_json() for value in self.results],
        }

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the inputs, in order."""
        return tuple(tuple(v.shape) for v in self.arguments if v.kind == "input")


@dataclass
class Manifest:
    """All of it. Inputs and outputs are those of the call, numbered through nested structures."""

    name: str
    target: str
    inputs: list[tuple[str, torch.dtype]]
    outputs: list[str]
    args: list[Tree]
    names: list[str | None]  # of the positional arguments, where known
    kwargs: dict[str, Tree]
    returns: Tree
    programs: list[Program] = field(default_factory=list)
    weights: str = WEIGHTS  # the name of the file

    def to_json(self) -> dict[str, Any]:
        import torch_tpu

        return {
            "format": FORMAT,
            "version": VERSION,
            "torch_tpu": torch_tpu.__version__,
            "torch": torch.__version__,
            "name": self.name,
            "target": self.target,
            "weights": self.weights,
            "inputs": [{"name": n, "dtype": dtype_name(d)} for n, d in self.inputs],
            "outputs": [{"name": name} for name in self.outputs],
            "args": self.args,
            "names": self.names,
            "kwargs": self.kwargs,
            "returns": self.returns,
            "programs": [program.to_json() for program in self.programs],
        }


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float32 as "float32"."""
    return str(dtype).removeprefix("torch.")


def shape_text(dtype: torch.dtype, shape: Any) -> str:
    """As in "float32[2,3]"."""
    return f"{dtype_name(dtype)}[{','.join(map(str, shape))}]"


def read_manifest(folder: Path) -> Manifest:
    """Raises FileNotFoundError or ExportFileError, which say what to do."""
    path = folder / MANIFEST
    if not path.is_file():
        what = "has no manifest.json" if folder.is_dir() else "does not exist"
        raise FileNotFoundError(
            f"[load] {folder} {what}. Give the folder that torch_tpu.export(..., path=) wrote."
        )
    try:
        data = json.loads(_read(path, _MOST_MANIFEST_BYTES).decode("utf-8"))
    except ExportFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is no JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ExportFileError(f"[load] {path} is no manifest of torch_tpu.export.")
    version = data.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise ExportFileError(
            f"[load] {path} has version {version!r}; this torch_tpu reads up to {VERSION}. Install "
            f"the torch_tpu that wrote it ({data.get('torch_tpu')}) or newer, or export again."
        )
    try:
        return _parse(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None


def read_module(folder: Path, program: Program) -> str:
    """The text of a module, if it is the one that was written."""
    path = folder / program.module
    if not path.exists():
        raise FileNotFoundError(
            f"[load] {path} is missing. Copy the whole folder, or export again."
        )
    raw = _read(path, _MOST_MODULE_BYTES)
    if hashlib.sha256(raw).hexdigest() != program.sha256:
        raise ExportFileError(
            f"[load] {path} is damaged or was changed: it has {len(raw)} bytes, and not the SHA-256"
            " the manifest gives. Copy it again, or export again."
        )
    return raw.decode("utf-8")


def _read(path: Path, most: int) -> bytes:
    """All of a file, unless it is none or larger than can be."""
    if not path.is_file():  # a pipe would never end
        raise ExportFileError(f"[load] {path} is no file. Copy it again, or export again.")
    with path.open("rb") as file:
        raw = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
    if len(raw) > most:
        raise _damaged(path, f"it has more than {most} bytes")
    return raw


def _damaged(path: Path, why: str) -> ExportFileError:
    return ExportFileError(f"[load] {path} is damaged: {why}. Copy it again, or export again.")


def _parse(data: dict[str, Any]) -> Manifest:
    manifest = Manifest(
        name=_text(data["name"]),
        target=_choice(data["target"], TARGETS),
        inputs=[(_text(item["name"]), _dtype(item["dtype"])) for item in data["inputs"]],
        outputs=[_text(item["name"]) for item in data["outputs"]],
        args=list(data["args"]),
        names=list(data["names"]),
        kwargs=dict(data["kwargs"]),
        returns=dict(data["returns"]),
        weights=_file(data.get("weights", WEIGHTS)),
        programs=[_program(item) for item in data["programs"]],
    )
    if not manifest.programs:
        raise ValueError("it has no programs")
    for program in manifest.programs:
        _check(program, manifest)
    if not all(name is None or isinstance(name, str) for name in manifest.names):
        raise TypeError(f"expected names of the arguments, got {manifest.names}")
    taken = [n for tree in [*manifest.args, *manifest.kwargs.values()] for n in trees.numbers(tree)]
    if taken != list(range(len(manifest.inputs))) or len(manifest.names) != len(manifest.args):
        raise ValueError("the structure of the arguments does not fit the inputs")
    if sorted(trees.numbers(manifest.returns)) != list(range(len(manifest.outputs))):
        raise ValueError("the structure of the results does not fit the outputs")
    return manifest


def _program(data: dict[str, Any]) -> Program:
    return Program(
        module=_file(data["module"]),
        sha256=_text(data["sha256"]),
        arguments=[_value(item, ARGUMENT_KINDS) for item in data["arguments"]],
        results=[_value(item, RESULT_KINDS) for item in data["results"]],
        draws=_size(data["draws"]),
    )


def _value(data: dict[str, Any], kinds: tuple[str, ...]) -> Value:
    strides = data.get("strides")
    return Value(
        kind=_choice(data["kind"], kinds),
        name=_text(data["name"]),
        dtype=_dtype(data["dtype"]),
        shape=[_size(size) for size in data["shape"]],
        index=_size(data["index"]) if "index" in data else -1,
        strides=None if strides is None else [_size(stride) for stride in strides],
        check=_text(data.get("check", "")),
    )


def _check(program: Program, manifest: Manifest) -> None:
    """That every number leads somewhere, and that what belongs together is of one type."""
    where, arguments = program.module, program.arguments
    kinds = [value.kind for value in arguments]
    inputs = [value.index for value in arguments if value.kind == "input"]
    if inputs != list(range(len(manifest.inputs))):
        raise ValueError(f"the inputs of {where} are numbered {inputs}")
    outputs = sorted(value.index for value in program.results if value.kind == "output")
    if outputs != list(range(len(manifest.outputs))):
        raise ValueError(f"the outputs of {where} are numbered {outputs}")
    if "random" in kinds and set(kinds[kinds.index("random") + 1 :]) - {"weight"}:
        raise ValueError(f"arguments of {where} other than weights follow the random state")
    for value in arguments:
        if value.kind == "input" and value.dtype != manifest.inputs[value.index][1]:
            raise ValueError(
                f"the input '{value.name}' is {dtype_name(manifest.inputs[value.index][1])}, and "
                f"{dtype_name(value.dtype)} in {where}"
            )
    written = [value.index for value in program.results if value.kind in ("state", "input")]
    if len(set(written)) != len(written):
        raise ValueError(f"two results of {where} are written to one argument")
    ends = [value.kind == "check" for value in program.results]
    if ends != sorted(ends):
        raise ValueError(f"results of {where} follow its checks")
    for value in program.results:
        _check_result(value, program)


def _check_result(value: Value, program: Program) -> None:
    where, arguments = program.module, program.arguments
    if value.kind in ("state", "input"):
        if not 0 <= value.index < len(arguments) or arguments[value.index].kind != value.kind:
            raise ValueError(f"a result of {where} is written to argument {value.index}")
        old = arguments[value.index]
        if (old.dtype, old.shape) != (value.dtype, value.shape):
            raise ValueError(
                f"'{old.name}' of {where} is {shape_text(old.dtype, old.shape)}, and what is "
                f"written to it {shape_text(value.dtype, value.shape)}"
            )
    if value.kind == "check" and value.check not in _CHECKS:
        raise ValueError(f"a check of {where} is called {value.check!r}")
    if value.strides is not None and not _is_dense(value.shape, value.strides):
        raise ValueError(f"a result of {where} has strides {value.strides}")


def _is_dense(shape: list[int], strides: list[int]) -> bool:
    """Whether the elements lie without gaps, in whatever order of the dimensions."""
    if len(shape) != len(strides):
        return False
    if 0 in shape:
        return True
    step = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    return value


def _file(value: Any) -> str:
    name = _text(value)
    if Path(name).name != name or name in ("", ".", "..") or "\0" in name:
        raise ValueError(f"a file outside the folder: {name!r}")
    return name


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_SIZE:
        raise TypeError(f"expected a size, got {value!r}")
    return value


def _choice(value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"expected one of {', '.join(allowed)}, got {value!r}")
    return str(value)


def _dtype(name: Any) -> torch.dtype:
    dtype = getattr(torch, _text(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype is called {name!r}")
    return dtype
