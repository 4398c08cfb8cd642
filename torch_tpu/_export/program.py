"""An export as a function: what torch_tpu.load returns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu._export import trees
from torch_tpu._export.manifest import (
    MANIFEST,
    ExportFileError,
    Manifest,
    Program,
    read_manifest,
    read_module,
    shape_text,
)
from torch_tpu._export.module import check_module
from torch_tpu._export.weights import load_weights
from torch_tpu.tpu._utils import _get_device_index

Shapes = tuple[tuple[int, ...], ...]


class LoadedProgram:
    """A model that `torch_tpu.export` wrote, on a device. Call it as the model was called.

    Its tensors must be on the same device; other sizes than those exported are an error. Buffers
    that the model updates (`model.train()` with BatchNorm, a cache of keys and values) are updated
    here, one call after another; `state_dict()` has them. Random ops draw from the device's
    generator, as in eager mode.
    """

    def __init__(self, path: str | os.PathLike[str], device: str | int | torch.device) -> None:
        self.path = Path(path)
        self._manifest = read_manifest(self.path)
        texts = [read_module(self.path, program) for program in self._manifest.programs]
        index = _get_device_index(device, optional=True)
        self.device = torch.device("tpu", index)
        self._check_target(index)
        for program, text in zip(self._manifest.programs, texts, strict=True):
            check_module(self.path, program, text)
        self._build = self._builder()
        arguments = [value for program in self._manifest.programs for value in program.arguments]
        self._weights = load_weights(
            self.path / self._manifest.weights,
            [value for value in arguments if value.kind in ("weight", "state")],
            self.device,
        )
        self._runners: dict[Shapes, _Runner] = {}
        for program, text in zip(self._manifest.programs, texts, strict=True):
            self._runners[program.shapes()] = _Runner(program, text, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model; the result has the form that the model returned."""
        inputs = self._flatten(args, kwargs)
        runner = self._runners.get(tuple(tuple(tensor.shape) for tensor in inputs))
        if runner is None:
            raise RuntimeError(self._wrong_shape(inputs))
        with torch.no_grad():
            return self._build(runner.run(inputs))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The weights on the device, by their names in the model. Those that are tied have one."""
        return dict(self._weights)

    def __repr__(self) -> str:
        manifest = self._manifest
        calls = []
        for program in manifest.programs:
            inputs = [v for v in program.arguments if v.kind == "input"]
            texts = [f"{v.name}: {shape_text(v.dtype, v.shape)}" for v in inputs]
            calls.append(f"{manifest.name}({', '.join(texts)})")
        return f"LoadedProgram({str(self.path)!r}, {' | '.join(calls)} on {self.device})"

    def _builder(self) -> Any:
        try:
            return trees.builder(self._manifest.returns)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ExportFileError(
                f"[load] {self.path / MANIFEST} is damaged: the structure of the results cannot be "
                f"built ({type(error).__name__}: {error}). Copy it again, or export again."
            ) from None

    def _check_target(self, index: int) -> None:
        kind = _C._device_properties(index)["platform_kind"]
        if self._manifest.target not in ("any", kind):
            raise RuntimeError(
                f"[load] {self.path} was exported for target={self._manifest.target!r}; the device "
                f"here is {kind!r}. Export again with target='any'."
            )

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        manifest = self._manifest
        given = list(args)
        for name in manifest.names[len(given) :]:
            if name is None or name not in kwargs:
                break
            given.append(kwargs.pop(name))
        if len(given) != len(manifest.args) or set(kwargs) != set(manifest.kwargs):
            raise TypeError(self._wrong_call(len(given), kwargs))
        inputs: list[torch.Tensor] = []
        try:
            for number, (tree, value) in enumerate(zip(manifest.args, given, strict=True)):
                trees.flatten(tree, value, manifest.names[number] or f"args[{number}]", inputs)
            for name, tree in manifest.kwargs.items():
                trees.flatten(tree, kwargs[name], name, inputs)
        except trees.TreeError as error:
            raise TypeError(f"[{manifest.name}] {error}.") from None
        for (name, dtype), tensor in zip(manifest.inputs, inputs, strict=True):
            if tensor.device != self.device:
                raise RuntimeError(
                    f"[{manifest.name}] Expected all tensors to be on the same device: '{name}' is "
                    f"on {tensor.device}, the weights are on {self.device}. Move it: "
                    f"{name}.to('{self.device}')."
                )
            if tensor.dtype != dtype:
                raise RuntimeError(
                    f"[{manifest.name}] '{name}' is {tensor.dtype}; exported with {dtype}."
                )
        return inputs

    def _wrong_call(self, count: int, kwargs: dict[str, Any]) -> str:
        manifest = self._manifest
        names = [name or f"args[{i}]" for i, name in enumerate(manifest.names)]
        wanted = ", ".join([*names, *(f"{name}=" for name in manifest.kwargs)])
        text = f"[{manifest.name}] was exported as {manifest.name}({wanted})"
        if count != len(manifest.args):
            text += f"; got {count} positional arguments"
        missing = [name for name in manifest.kwargs if name not in kwargs]
        unknown = [name for name in kwargs if name not in manifest.kwargs]
        if missing:
            text += f"; missing: {', '.join(missing)}"
        if unknown:
            text += f"; not exported: {', '.join(unknown)}"
        return text + "."

    def _wrong_shape(self, inputs: list[torch.Tensor]) -> str:
        manifest = self._manifest
        known = list(self._runners)
        for number, ((name, _), tensor) in enumerate(zip(manifest.inputs, inputs, strict=True)):
            allowed = {shapes[number] for shapes in known}
            if tuple(tensor.shape) not in allowed:
                listed = " or ".join(str(list(shape)) for shape in sorted(allowed))
                return (
                    f"[{manifest.name}] '{name}' has shape {list(tensor.shape)}; exported with "
                    f"{listed}. Export with dynamic_shapes and more_args for further sizes."
                )
        return (
            f"[{manifest.name}] these shapes were exported, but not together: "
            f"{[list(tensor.shape) for tensor in inputs]}."
        )


class _Runner:
    """One module, compiled, with its weights."""

    def __init__(self, program: Program, text: str, owner: LoadedProgram) -> None:
        manifest: Manifest = owner._manifest
        arguments, results = program.arguments, program.results
        # From the random state on, the compiled program brings the arguments itself.
        kinds = [value.kind for value in arguments]
        split = kinds.index("random") if "random" in kinds else len(arguments)
        self._sources: list[Any] = [
            value.index if value.kind == "input" else owner._weights[value.name]
            for value in arguments[:split]
        ]
        kept = [None if v.kind == "random" else owner._weights[v.name] for v in arguments[split:]]
        fresh = [value for value in results if value.kind in ("output", "input")]
        self._outputs = [(i, v.index) for i, v in enumerate(fresh) if v.kind == "output"]
        self._writes = [
            (i, arguments[v.index].index) for i, v in enumerate(fresh) if v.kind == "input"
        ]
        outputs = []
        for value in results:
            if value.kind != "check":
                strides = value.strides or list(torch.empty(value.shape, device="meta").stride())
                write = value.index if value.kind == "state" else -1
                outputs.append((write, value.dtype, value.shape, strides))
        try:
            graph = _C._load_module(
                f"exported_{manifest.name}",
                text,
                owner.device.index,
                [(value.dtype, value.shape) for value in arguments[:split]],
                kept,
                outputs,
                [(value.check, value.name) for value in results if value.kind == "check"],
                program.draws,
            )
        except RuntimeError as error:
            raise RuntimeError(
                f"[load] {owner.path / program.module} could not be compiled for {owner.device}: "
                f"{error}"
            ) from error
        self._function = _C._CompiledFunction()
        self._function.add(graph, [], [...] * len(fresh))

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs by their numbers. Writes to states and inputs as the model did."""
        tensors = [inputs[s] if isinstance(s, int) else s for s in self._sources]
        results = self._function(tensors)
        if results is None:  # a view, or an array of another layout
            plain = [_C._plain(tensor) for tensor in tensors]
            results = self._function(list(plain))
            assert results is not None
            for source, given, taken in zip(self._sources, tensors, plain, strict=True):
                if taken is not given and not isinstance(source, int):
                    given.copy_(taken)  # a state that somebody has written to
        outputs = [results[place] for place, _ in sorted(self._outputs, key=lambda item: item[1])]
        for place, number in self._writes:
            inputs[number].copy_(results[place])
        return outputs
