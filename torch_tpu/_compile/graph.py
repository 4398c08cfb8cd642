"""A compiled graph: called with a list of arguments, it runs as one program. The program is
recorded at the first call, when it is known how the arguments lie in memory, and again for a new
layout or another number among them."""

from __future__ import annotations

import functools
import itertools
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from torch_tpu import _C
from torch_tpu._compile.bounded import BoundedGraph
from torch_tpu._compile.constants import make_small_constants
from torch_tpu._compile.device_number import DeviceNumber
from torch_tpu._compile.gathers import take_first
from torch_tpu._compile.interpreter import Env, HostPart, NodeError, evaluate, run_module
from torch_tpu._compile.nested import pass_host_tensors, pass_ragged_sizes
from torch_tpu._compile.one_hot import sum_one_hot
from torch_tpu._compile.options import Options
from torch_tpu._compile.plan import DEVICE, CannotPlanError, Plan, make_plan, tensors_of
from torch_tpu._compile.random import mark_random
from torch_tpu._compile.sizes import UnprovenError
from torch_tpu._compile.vectorize import vectorize
from torch_tpu._compile.writes import written_inputs

_log = logging.getLogger("torch_tpu.compile")
_serial = itertools.count()


def _is_known(node: fx.Node) -> bool:
    """A result that needs no look at the device: tensors, and sizes of tensors."""
    if node.target is torch.ops.aten.sym_size.int:
        return True
    return next(tensors_of(node.meta.get("val")), None) is not None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


class CompiledGraph:
    """Knows the graph and its programs."""

    def __init__(
        self,
        gm: fx.GraphModule,
        kind: str,
        options: Options,
        visible: int | None = None,
        *,
        prepared: bool = False,
    ) -> None:
        """`visible`: how many of the first results the caller sees; the others are for backward.
        `prepared`: the graph has been rewritten before."""
        self._gm = gm
        self._options = options
        self._kind = kind
        self._visible = visible
        self._name = f"compiled_{kind}_{next(_serial)}"
        self._program = _C._CompiledFunction()
        self._op_by_op: str = ""  # why
        self._plan: Plan | None = None
        self._kept: list[torch.Tensor] = []  # constants on the device: further arguments
        self._direct = False
        self._uploads: list[fx.Node] = []
        self._packs: list[list[fx.Node]] = []
        self._sizes: list[fx.Node] = []  # numbers that the CPU tells: a program for each
        self._numbers: set[int] = set()  # results of programs that are numbers in the graph
        self._bounded: BoundedGraph | None = None
        try:
            if not prepared:
                mark_random(gm)
                make_small_constants(gm)
                vectorize(gm)
                take_first(gm)
                sum_one_hot(gm)
            self._plan = make_plan(gm)
        except CannotPlanError as error:
            self._give_up(str(error))
            return
        self._kept = [
            value
            for value in self._plan.constants.values()
            if _is_tensor(value) and value.device.type == DEVICE
        ]
        known = all(_is_known(node) for node in self._plan.results)
        self._direct = self._plan.on_device_only and not self._kept and known
        self._taken = [
            node
            for node in self._plan.placeholders
            if self._direct
            or all(t.device.type == DEVICE for t in tensors_of(node.meta.get("val")))
        ]
        # Numbers travel together, one array per dtype.
        numbers: dict[torch.dtype, list[fx.Node]] = {}
        for node in self._plan.uploads:
            value: Any = node.meta.get("val", self._plan.constants.get(node))
            if not _is_tensor(value):
                self._sizes.append(node)
            elif value.dim() == 0:
                numbers.setdefault(value.dtype, []).append(node)
            else:
                self._uploads.append(node)
        self._packs = list(numbers.values())
        assert self._plan.output is not None
        outputs = self._plan.output.all_input_nodes
        self._after = HostPart(self._plan.after, outputs)
        needed = [*self._plan.uploads, *outputs, *self._after.inputs]
        self._before = HostPart(self._plan.before, list(dict.fromkeys(needed)))
        self._bounded = self._bounded_graph()

    def _bounded_graph(self) -> BoundedGraph | None:
        plan = self._plan
        assert plan is not None
        if not (self._options.bounded and BoundedGraph.wanted(plan)):
            return None
        try:
            if not self._direct:
                raise UnprovenError("constants, CPU tensors or results that are no tensors")
            return BoundedGraph(plan, self._name, self._visible)
        except UnprovenError as error:
            self._give_up_bounds(error)
            return None

    def _give_up_bounds(self, error: UnprovenError) -> None:
        """From now on a program per size."""
        self._bounded = None
        torch._dynamo.utils.counters["torch_tpu"]["unbounded_graphs"] += 1
        _log.info("%s: a program per size. The reason: %s", self._name, error)

    def function(self) -> Callable[[list[Any]], list[Any]]:
        """What AOTAutograd calls with one list, which it empties."""
        program = self._program
        call_slowly = self._call_slowly

        def run(args: list[Any]) -> list[Any]:
            results = program(args)
            return call_slowly(args) if results is None else results

        def run_parts(args: list[Any]) -> list[Any]:
            return call_slowly(args)

        plain: Any = run
        if self._direct:
            assert self._plan is not None
            plain = pass_host_tensors(self._plan, run)

        def run_bounded(args: list[Any]) -> list[Any]:
            if self._bounded is not None and not _has_fakes(args):
                try:
                    with torch.no_grad():
                        return self._bounded(args)
                except UnprovenError as error:
                    self._give_up_bounds(error)
            return plain(args)

        function: Any = plain if self._direct else run_parts
        if self._bounded is not None:
            function = run_bounded
        if self._plan is not None:
            function = pass_ragged_sizes(self._plan, function)
        function._boxed_call = True
        return function

    def _call_slowly(self, args: list[Any]) -> list[Any]:
        with torch.no_grad():
            if self._plan is None:
                return self._run_op_by_op(args)
            if self._direct:
                self._take_out_views(args)
                results = self._program(args)
                if results is None:
                    if not self._add_variant(args):
                        return self._run_op_by_op(args)
                    results = self._program(args)
                assert results is not None
                return results
            return self._run_parts(args)

    def _take_out_views(self, inputs: list[Any]) -> None:
        """Once there is a program, arguments that lie elsewhere in their storage are copied to its
        start: a loop over rows shall not have a program per row. Not where the graph writes to its
        arguments, which has to reach what they are views of."""
        if len(self._program) == 0 or self._writes:
            return
        for i, value in enumerate(inputs):
            if _is_tensor(value) and value.device.type == DEVICE and value.storage_offset() != 0:
                inputs[i] = value.clone()

    @functools.cached_property
    def _writes(self) -> bool:
        return bool(written_inputs(self._gm))

    def _read_numbers(self, results: list[Any]) -> list[Any]:
        for i in self._numbers:
            if _is_tensor(results[i]):  # another variant may know it
                results[i] = results[i].item()
        return results

    def _run_parts(self, args: list[Any]) -> list[Any]:
        plan = self._plan
        assert plan is not None
        assert plan.output is not None
        env: Env = dict(zip(plan.placeholders, args, strict=True))
        env.update(plan.constants)
        evaluate(plan.numbers, env)
        self._before(env)
        inputs = self._device_inputs(env)
        results = self._program(list(inputs))
        if results is None:
            self._take_out_views(inputs)
            results = self._program(list(inputs))
        if results is None:
            if not self._add_variant(inputs):
                return self._run_op_by_op(args)
            results = self._program(list(inputs))
            assert results is not None
        args.clear()
        _spread(plan.results, self._read_numbers(results), env)
        self._after(env)
        return _values(plan.output, env)

    def _device_inputs(self, env: Env) -> list[Any]:
        """Arguments of the program: device tensors and numbers as they come, the constants, then
        what the CPU has made."""
        inputs = [env[node] for node in self._taken] + self._kept
        device = torch.device(DEVICE, self._device(inputs))
        inputs += [env[node].to(device) for node in self._uploads]
        inputs += [torch.stack([env[n] for n in pack]).to(device) for pack in self._packs]
        return inputs + [env[node] for node in self._sizes]

    def _device(self, inputs: list[Any]) -> int:
        """Whose the inputs are; without any, the one where the graph makes its tensors."""
        for tensor in tensors_of(inputs):
            if tensor.device.type == DEVICE:
                return tensor.device.index
        return _C._current_device() if self._traced_device is None else self._traced_device

    @functools.cached_property
    def _traced_device(self) -> int | None:
        for node in self._gm.graph.nodes:
            for tensor in tensors_of(node.meta.get("val")):
                if tensor.device.type == DEVICE and tensor.device.index is not None:
                    return int(tensor.device.index)
        return None

    def _add_variant(self, inputs: list[Any]) -> bool:
        """Records and compiles a program for such arguments; False when that cannot be."""
        if self._op_by_op or _has_fakes(inputs):
            return False
        if len(self._program) >= self._options.max_variants:
            self._give_up(f"it has {len(self._program)} programs already, one per size or number")
            return False
        try:
            graph, others = self._record(inputs)
        except (NodeError, NotImplementedError) as error:
            self._give_up(str(error), error)
            return False
        constants = [value for value in inputs if not _is_tensor(value)]
        self._program.add(graph, constants, others)
        _log.debug(
            "%s: %d nodes, %.3f s", self._name, len(self._gm.graph.nodes), graph.compile_seconds
        )
        return True

    def _record(self, inputs: list[Any]) -> tuple[Any, list[Any]]:
        plan = self._plan
        assert plan is not None
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch._C._DisableAutocast(),
            _C._Recording(self._device(inputs)) as recording,
        ):
            stand_ins = [recording.argument(v) if _is_tensor(v) else v for v in inputs]
            env = self._bind(stand_ins)
            evaluate(plan.numbers, env)
            evaluate(plan.device, env)
            flat = list(itertools.chain.from_iterable(_flat(env[node]) for node in plan.results))
            if self._direct:
                assert plan.output is not None
                flat = _values(plan.output, env)
            self._numbers |= {i for i, v in enumerate(flat) if isinstance(v, DeviceNumber)}
            flat = [v.tensor if isinstance(v, DeviceNumber) else v for v in flat]
            # What is saved for backward must not change when the user writes to a result.
            share = self._kind == "inference"
            visible = self._visible if self._direct else None
            return recording.compile(self._name, flat, share=share, visible=visible)

    def _bind(self, inputs: list[Any]) -> Env:
        """What the placeholders, constants and uploads are, by the order of `_device_inputs`."""
        plan = self._plan
        assert plan is not None
        env: Env = {}
        rest = iter(inputs)
        uploaded = set(plan.uploads)
        for node in self._taken:
            env[node] = next(rest)
        for node, value in plan.constants.items():
            if _is_tensor(value) and value.device.type == DEVICE:
                env[node] = next(rest)
            elif node not in uploaded:
                env[node] = value
        for node in self._uploads:
            env[node] = next(rest)
        for pack in self._packs:
            env.update(zip(pack, next(rest).unbind(0), strict=True))
        for node in self._sizes:
            env[node] = next(rest)
        return env

    def _give_up(self, reason: str, error: Exception | None = None) -> None:
        self._op_by_op = reason
        text = f"torch.compile on 'tpu': a graph of {len(self._gm.graph.nodes)} nodes runs op by op"
        text += f" instead of as one program. The reason: {reason}"
        if self._options.fallback == "error":
            raise RuntimeError(text) from error
        warnings.warn(text, stacklevel=2)

    def _run_op_by_op(self, args: list[Any]) -> list[Any]:
        given = list(args)
        args.clear()
        try:
            return list(run_module(self._gm, given))
        except NodeError as error:
            raise error.__cause__ from None  # type: ignore[misc]


def _has_fakes(values: list[Any]) -> bool:
    """Somebody asks what the results would be like: they have no memory, and need no program."""
    return any(isinstance(value, FakeTensor) for value in values)


def _values(output: fx.Node, env: Env) -> list[Any]:
    """Of the graph's results."""
    found: Any = fx.node.map_arg(output.args[0], lambda node: env[node])
    return list(found)


def _flat(value: Any) -> list[Any]:
    return (
        [item for part in value for item in _flat(part)]
        if isinstance(value, (list, tuple))
        else [value]
    )


def _spread(nodes: list[fx.Node], results: list[Any], env: Env) -> None:
    """The reverse of flattening: gives each node its value again."""
    rest = iter(results)

    def rebuild(like: Any) -> Any:
        if isinstance(like, (list, tuple)):
            return type(like)(rebuild(item) for item in like)
        value = next(rest)
        # A loop that mixes devices runs on ours.
        on_cpu = _is_tensor(like) and _is_tensor(value) and like.device.type != value.device.type
        return value.to(like.device) if on_cpu else value

    for node in nodes:
        env[node] = rebuild(node.meta.get("val"))
