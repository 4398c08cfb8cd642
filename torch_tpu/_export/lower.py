"""From an ExportedProgram to a StableHLO module: the functional graph is evaluated on stand-ins of
a recording, so every op is lowered as it is in eager mode."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from torch_tpu import _C
from torch_tpu._compile.interpreter import Env, NodeError, attribute, evaluate
from torch_tpu._export.manifest import Program, Value

_aten = torch.ops.aten
# Say something about values or layouts, compute nothing.
_ASSERTIONS = {
    _aten._assert_async.default,
    _aten._assert_async.msg,
    _aten._assert_tensor_metadata.default,
}


def _checked(function: Any, results: int) -> Any:
    """Calls the form of an op whose module reports a failure, where the plain one would read it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs, check_errors=True)
        return out[0] if results == 1 else out[:results]

    return call


_REPLACED = {
    # Whether a view is possible depends on strides, which may differ on the device.
    _aten.view.default: _aten.reshape.default,
    _aten.linalg_inv.default: _checked(_aten.linalg_inv_ex.default, 1),
    _aten.inverse.default: _checked(_aten.linalg_inv_ex.default, 1),
    _aten.linalg_cholesky.default: _checked(_aten.linalg_cholesky_ex.default, 1),
    _aten.linalg_solve.default: _checked(_aten.linalg_solve_ex.default, 1),
    _aten.linalg_lu_factor.default: _checked(_aten.linalg_lu_factor_ex.default, 2),
}
_WEIGHT_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass
class Lowered:
    """A module, and the constants that only this module needs."""

    program: Program
    text: str
    constants: dict[str, torch.Tensor]
    numbers: list[Any]  # per user output: what is not a tensor


def prepare(ep: torch.export.ExportedProgram, device: torch.device) -> None:
    """Makes a graph that was traced anywhere one of the device. The graph must be ours."""
    for module in ep.graph_module.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in list(module.graph.nodes):
            if node.target in _ASSERTIONS and not node.users:
                module.graph.erase_node(node)
                continue
            node.args = _move(node.args, device)
            node.kwargs = _move(node.kwargs, device)
            node.target = _REPLACED.get(node.target, node.target)


def _move(value: Any, device: torch.device) -> Any:
    return fx.node.map_aggregate(
        value, lambda item: device if isinstance(item, torch.device) else item
    )


class Weights:
    """The tensors of a model under one name each, however many names they have there."""

    def __init__(self, ep: torch.export.ExportedProgram) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.of_placeholder: dict[str, str] = {}
        self.mutated: set[str] = set()
        names: dict[Any, str] = {}
        storages: dict[int, list[str]] = {}
        for spec in ep.graph_signature.input_specs:
            if spec.kind not in _WEIGHT_KINDS:
                continue
            assert spec.target is not None
            target = spec.target
            tensor = ep.state_dict.get(target)
            if tensor is None:
                tensor = ep.constants[target]
            storage = tensor.untyped_storage()._cdata
            key = (storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
            if key not in names:
                names[key] = target
                storages.setdefault(storage, []).append(target)
                self.tensors[target] = tensor.detach()
            self.of_placeholder[spec.arg.name] = names[key]
        by_target = {
            spec.target: self.of_placeholder[spec.arg.name]
            for spec in ep.graph_signature.input_specs
            if spec.kind in _WEIGHT_KINDS
        }
        for spec in ep.graph_signature.output_specs:
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                name = by_target[spec.target]
                self.mutated.add(name)
                sharing = storages[self.tensors[name].untyped_storage()._cdata]
                if len(sharing) > 1:
                    raise RuntimeError(
                        f"[export] the model writes to '{name}', which shares memory with "
                        f"{sharing}. Give each its own: `model.x = model.x.clone()`."
                    )


def dense_strides(tensor: torch.Tensor) -> list[int]:
    """Of a tensor with the same order of dimensions and nothing between its elements."""
    return list(torch.empty_like(tensor, device="meta").stride())


def lower(
    ep: torch.export.ExportedProgram,
    weights: Weights,
    inputs: list[Any],
    file: str,
    name: str,
    device: torch.device,
    target: str,
) -> Lowered:
    """Lowers a prepared graph for inputs like these, one per user input."""
    with (
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._DisableAutocast(),
        # XLA:CPU's lowerings are right for every compiler.
        _C._Recording(device.index, "cpu" if target == "any" else target) as recording,
    ):
        return _Lowering(ep, weights, recording).run(inputs, file, name)


class _Lowering:
    def __init__(self, ep: torch.export.ExportedProgram, weights: Weights, recording: Any) -> None:
        self._ep = ep
        self._weights = weights
        self._recording = recording
        self._env: Env = {}
        self._arguments: list[Value] = []
        self._stand_ins: dict[str, torch.Tensor] = {}  # of weights, by name
        self._input_places: dict[str, int] = {}  # among the arguments

    def run(self, inputs: list[Any], file: str, name: str) -> Lowered:
        nodes = list(self._ep.graph_module.graph.nodes)
        self._bind([node for node in nodes if node.op == "placeholder"], inputs)
        for node in nodes:
            if node.op == "get_attr":
                self._env[node] = attribute(self._ep.graph_module, str(node.target))
        body = [n for n in nodes if n.op not in ("placeholder", "get_attr", "output")]
        try:
            evaluate(body, self._env)
        except NodeError as error:
            raise _cannot(error) from error.__cause__
        flat = [
            self._env[item] if isinstance(item, fx.Node) else item for item in nodes[-1].args[0]
        ]
        return self._finish(flat, file, name)

    def _bind(self, placeholders: list[fx.Node], inputs: list[Any]) -> None:
        rest = iter(inputs)
        number = 0
        for node, spec in zip(placeholders, self._ep.graph_signature.input_specs, strict=True):
            if spec.kind in _WEIGHT_KINDS:
                if node.users:
                    self._env[node] = self._weight(self._weights.of_placeholder[node.name])
            elif spec.kind == InputKind.USER_INPUT:
                value = next(rest)
                if isinstance(value, torch.Tensor):
                    self._input_places[node.name] = len(self._arguments)
                    self._env[node] = self._add("input", node.name, value, number)
                    number += 1
                else:
                    self._env[node] = value
            else:
                raise RuntimeError(
                    f"[export] '{node.name}' is a {spec.kind.name.lower()}, which no module holds."
                )
        for name in sorted(self._weights.mutated):  # also one that is only written
            self._weight(name)

    def _weight(self, name: str) -> torch.Tensor:
        if name not in self._stand_ins:
            kind = "state" if name in self._weights.mutated else "weight"
            self._stand_ins[name] = self._add(kind, name, self._weights.tensors[name])
        return self._stand_ins[name]

    def _add(self, kind: str, name: str, like: torch.Tensor, index: int = -1) -> torch.Tensor:
        shape = list(like.shape)
        self._arguments.append(Value(kind, name, like.dtype, shape, index))
        return self._recording.parameter(shape, dense_strides(like), like.dtype)

    def _finish(self, flat: list[Any], file: str, name: str) -> Lowered:
        results: list[Value] = []
        tensors: list[torch.Tensor] = []
        numbers: list[Any] = []
        writes: list[tuple[str, torch.Tensor]] = []
        taken: set[int] = set()
        arguments = [v for n, v in self._env.items() if n.op == "placeholder"]
        inside = {v.untyped_storage()._cdata for v in arguments if isinstance(v, torch.Tensor)}
        outputs = 0
        for value, spec in zip(flat, self._ep.graph_signature.output_specs, strict=True):
            if isinstance(value, torch.Tensor) and (
                id(value) in taken or value.untyped_storage()._cdata in inside
            ):
                value = value.clone()  # a result of its own, with what the argument holds now
            taken.add(id(value))
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                placeholder = next(
                    s.arg.name
                    for s in self._ep.graph_signature.input_specs
                    if s.kind in _WEIGHT_KINDS and s.target == spec.target
                )
                writes.append((self._weights.of_placeholder[placeholder], value))
            elif spec.kind == OutputKind.USER_INPUT_MUTATION:
                assert spec.target is not None
                place = self._input_places[spec.target]
                results.append(_result("input", spec.target, value, place))
                tensors.append(value)
            elif spec.kind == OutputKind.USER_OUTPUT:
                numbers.append(None if isinstance(value, torch.Tensor) else value)
                if isinstance(value, torch.Tensor):
                    results.append(_result("output", f"output{outputs}", value, outputs))
                    tensors.append(value)
                    outputs += 1
            else:
                raise RuntimeError(f"[export] cannot export a result of kind {spec.kind.name}.")
        for weight, value in writes:
            # A value of the buffer's own shape: it takes the buffer's memory.
            self._stand_ins[weight].copy_(_C._plain(value))
        made = self._recording.module(name, tensors)
        return self._describe(made, results, numbers, file)

    def _describe(
        self, made: dict[str, Any], results: list[Value], numbers: list[Any], file: str
    ) -> Lowered:
        states = []
        for write, _, _, _ in made["outputs"]:
            if write >= 0:
                argument = self._arguments[write]
                states.append(Value("state", argument.name, argument.dtype, argument.shape, write))
        fresh = made["outputs"][len(states) :]
        assert made["results"] == list(range(len(states), len(made["outputs"])))
        for value, (_, dtype, shape, strides) in zip(results, fresh, strict=True):
            value.dtype, value.shape = dtype, shape
            row_major = list(torch.empty(shape, device="meta").stride())
            value.strides = None if strides == row_major else strides
        checks = [
            Value("check", message, torch.int64, [], check=kind) for kind, message in made["checks"]
        ]
        constants: dict[str, torch.Tensor] = {}
        arguments = list(self._arguments)
        for number, kept in enumerate(made["kept"]):
            if kept is None:
                arguments.append(Value("random", "random", torch.uint64, [2]))
                continue
            constant = f"{file.removesuffix('.mlir')}.constant{number}"
            constants[constant] = kept
            arguments.append(Value("weight", constant, kept.dtype, list(kept.shape)))
        sha256 = hashlib.sha256(made["text"].encode()).hexdigest()
        everything = [*states, *results, *checks]
        program = Program(file, sha256, arguments, everything, made["draws"])
        return Lowered(program, made["text"], constants, numbers)


def _result(kind: str, name: str, value: torch.Tensor, index: int) -> Value:
    return Value(kind, name, value.dtype, list(value.shape), index)


def _cannot(error: NodeError) -> RuntimeError:
    text = f"[export] the model cannot become one module: {error}"
    trace = error.node.meta.get("stack_trace")
    lines = [line.strip() for line in (trace or "").strip().splitlines()]
    where = [index for index, line in enumerate(lines) if line.startswith("File ")]
    if where:
        text += "\nIn the model: " + " ".join(lines[where[-1] : where[-1] + 2])
    return RuntimeError(text)
