"""From Python to a StableHLO module without memory: the user's code runs once on stand-ins that
have a shape and no contents, so that every op is lowered as it is in eager mode."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu._user_line import line_of
from torch_tpu.aot.scan import ScannedLayers, find_stacks
from torch_tpu.aot.shard import Shard, annotate, constrain
from torch_tpu.aot.step import TrainStep, ValuesNeededError, owned_by, told_to_compile
from torch_tpu.aot.topologies import AotError


@dataclass
class Argument:
    """An argument of the module, in order."""

    kind: str  # "parameter", "buffer", "state", "input", "constant"
    name: str
    dtype: torch.dtype
    shape: list[int]
    divided: int | None = None  # the dimension that is spread over the devices
    donated: bool = False

    @property
    def bytes(self) -> int:
        """Of its elements, on all devices together."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass
class Traced:
    """A module, and what its arguments are."""

    name: str
    text: str
    arguments: list[Argument]
    devices: int = 1
    ops: int = 0
    risks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    made: dict[str, Any] = field(default_factory=dict, repr=False)  # results, constants, checks


def trace(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    state: Iterable[nn.Module | torch.optim.Optimizer] | None = None,
    shard: Shard | None = None,
    scan: str | None = None,
    name: str | None = None,
) -> Traced:
    """Runs the function once on stand-ins; everything it touches is put back afterwards."""
    if not callable(function):
        raise AotError(
            f"expected a module or a function to compile, got {type(function).__name__}."
        )
    if not isinstance(args, (tuple, list)):
        raise AotError(
            f"expected the arguments as a tuple, got {type(args).__name__}. "
            "For one argument: `(x,)`."
        )
    modules, optimizers = owned_by(function, state)
    if name is None:
        named = function.model if isinstance(function, TrainStep) else function
        name = getattr(named, "__name__", type(named).__name__)

    def attempt() -> Traced:
        work = _Tracing(modules, optimizers, shard)
        with contextlib.ExitStack() as stack:
            if scan is not None:
                stack.enter_context(work.scanned(scan))
            return work.run(function, tuple(args), dict(kwargs or {}), name)

    try:
        return attempt()
    except ValuesNeededError:
        with told_to_compile(function):
            return attempt()


@contextlib.contextmanager
def without_memory(function: Callable[..., Any]) -> Iterator[list[nn.Module]]:
    """Meanwhile parameters and buffers of what the function uses are on the device "meta"."""
    modules, optimizers = owned_by(function, None)
    work = _Tracing(modules, optimizers, None)
    try:
        work.to_meta()
        yield modules
    finally:
        work.put_back()


class _Tracing:
    def __init__(
        self,
        modules: list[nn.Module],
        optimizers: list[torch.optim.Optimizer],
        shard: Shard | None,
    ) -> None:
        self._modules = modules
        self._optimizers = optimizers
        self._shard = shard
        self._arguments: list[Argument] = []
        self._stacked: set[int] = set()  # parameters with a dimension for the layers
        self._scans: list[ScannedLayers] = []
        self._recording: Any = None
        self._undo: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def scanned(self, path: str) -> Iterator[None]:
        """Meanwhile the layers at `path` are one loop."""
        owner, leaf, layers = self._find_layers(path)
        scanned = ScannedLayers(layers)
        self._scans.append(scanned)
        self._stacked |= {id(p) for p in scanned.stacks()}
        of_layers = {
            id(layer.get_parameter(n)): i for layer in layers for i, n in enumerate(scanned.names)
        }
        groups = [(group, group["params"]) for o in self._optimizers for group in o.param_groups]
        for group, params in groups:
            stacks = dict.fromkeys(of_layers[id(p)] for p in params if id(p) in of_layers)
            rest = [p for p in params if id(p) not in of_layers]
            group["params"] = rest + [scanned.stacks()[i] for i in stacks]
        setattr(owner, leaf, nn.ModuleList([scanned]))
        try:
            yield
        finally:
            setattr(owner, leaf, layers)
            for group, params in groups:
                group["params"] = params

    def _find_layers(self, path: str) -> tuple[nn.Module, str, nn.ModuleList]:
        for module in self._modules:
            owner_path, _, leaf = path.rpartition(".")
            with contextlib.suppress(AttributeError):
                owner = module.get_submodule(owner_path)
                layers = getattr(owner, leaf)
                if isinstance(layers, nn.ModuleList):
                    return owner, leaf, layers
        found = [n for m in self._modules for n, _ in find_stacks(m)]
        raise AotError(
            f"there is no ModuleList '{path}' in the model."
            + (f" It has layers that are alike in: {', '.join(found)}." if found else "")
        )

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
    ) -> Traced:
        if self._shard is not None and self._scans:
            self._constrain(args, kwargs)
        try:
            self.to_meta()
            self._start_optimizers()
            with (
                torch.autograd.set_multithreading_enabled(False),
                _C._Recording(0, "tpu") as recording,
            ):
                self._recording = recording
                self._stand_in_for_state()
                flat, spec = pytree.tree_flatten((args, kwargs))
                given = [self._input(i, v) for i, v in enumerate(flat)]
                call_args, call_kwargs = pytree.tree_unflatten(given, spec)
                with self._scopes():
                    result = _call(function, call_args, call_kwargs)
                made = recording.module(name, self._results(result, given))
        finally:
            self.put_back()
        return self._finish(name, made, flat)

    def put_back(self) -> None:
        """All that was replaced."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    # --- what the model holds -------------------------------------------------------------------

    def _parameters(self) -> list[nn.Parameter]:
        return list(dict.fromkeys(p for m in self._modules for p in m.parameters()))

    def to_meta(self) -> None:
        """Parameters first lose their memory, so that states of an optimizer have none either."""
        params = self._parameters()
        known = {id(p) for p in params}
        for optimizer in self._optimizers:
            if any(id(p) not in known for g in optimizer.param_groups for p in g["params"]):
                raise AotError(
                    "the optimizer has parameters that no module given has. Name all modules by "
                    "`state=[model, ..., optimizer]`."
                )
        self._replace({p: torch.empty_like(p, device="meta") for p in params})
        for owner in dict.fromkeys(c for m in self._modules for c in m.modules()):
            for holder in (owner._buffers, vars(owner)):
                for key, value in list(holder.items()):
                    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                        self._put(holder, key, torch.empty_like(value, device="meta"))

    def _replace(self, values: dict[nn.Parameter, torch.Tensor]) -> None:
        """Puts other parameters in their places, until the trace is done."""
        made = {
            id(p): nn.Parameter(value.detach(), requires_grad=p.requires_grad)
            for p, value in values.items()
        }
        self._stacked |= {id(made[id(p)]) for p in values if id(p) in self._stacked}
        for module in dict.fromkeys(c for m in self._modules for c in m.modules()):
            for name, p in module._parameters.items():
                if p is not None:
                    self._put(module._parameters, name, made[id(p)])
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                self._put(group, "params", [made[id(p)] for p in group["params"]])
            state = defaultdict(dict, {made[id(p)]: v for p, v in optimizer.state.items()})
            self._put(vars(optimizer), "state", state)

    def _put(self, holder: Any, key: str, value: Any) -> None:
        old = holder[key]
        self._undo.append(lambda: holder.__setitem__(key, old))
        holder[key] = value

    def _start_optimizers(self) -> None:
        """Optimizers make their states in their first step; it is done on memory of no size."""
        for optimizer in self._optimizers:
            optimizer.state = defaultdict(dict)  # put back by what `_replace` has noted
            params = [p for group in optimizer.param_groups for p in group["params"]]
            params = [p for p in params if p.requires_grad]
            for p in params:
                p.grad = torch.empty_like(p)
            try:
                with torch.no_grad():
                    optimizer.step()
            except Exception as error:
                raise AotError(
                    f"{type(optimizer).__name__} cannot make its states without memory: {error}. "
                    "Try it with foreach=False, fused=False."
                ) from error
            for p in params:
                p.grad = None
                step = optimizer.state[p].get("step")
                if isinstance(step, torch.Tensor) and step.device.type == "cpu":
                    step.zero_()  # a count that is kept on the host: the traced step is the first

    def _stand_in_for_state(self) -> None:
        names: dict[int, str] = {}
        values: dict[nn.Parameter, torch.Tensor] = {}
        for module in self._modules:
            for name, p in module.named_parameters():
                name = self._shown(name) if id(p) in self._stacked else name
                if p not in values:
                    values[p] = self._add("parameter", name, p, id(p) in self._stacked)
                    names[id(p)] = name
            for prefix, child in module.named_modules():
                self._stand_in_for_buffers(child, f"{prefix}." if prefix else "")
        for scanned in self._scans:
            for prefix, child in scanned.layer[0].named_modules():
                self._stand_in_for_buffers(child, f"layer.{prefix}." if prefix else "layer.")
        for optimizer in self._optimizers:
            for owner, state in optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and value.device.type == "meta":
                        name = f"{names[id(owner)]}.{key}"
                        state[key] = self._add("state", name, value, id(owner) in self._stacked)
        self._replace(values)

    @staticmethod
    def _shown(name: str) -> str:
        """Of a stack: "blocks.*.up.weight" for "blocks.0.up__weight"."""
        path, _, leaf = name.rpartition(".")
        return f"{path.removesuffix('0')}*.{leaf.replace('__', '.')}"

    def _stand_in_for_buffers(self, owner: nn.Module, prefix: str) -> None:
        for kind, holder in (("buffer", owner._buffers), ("constant", vars(owner))):
            for key, value in list(holder.items()):
                if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                    self._put(holder, key, self._add(kind, prefix + key, value))

    def _input(self, number: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = self._add("input", f"input{number}", value)
        return made.requires_grad_(value.requires_grad)

    def _add(self, kind: str, name: str, like: torch.Tensor, stacked: bool = False) -> torch.Tensor:
        shape = list(like.shape)
        argument = Argument(kind, name, like.dtype, shape)
        if self._shard is not None:
            argument.divided = self._shard.dim_of(kind, name, shape, stacked)
        self._arguments.append(argument)
        strides = list(torch.empty_like(like, device="meta").stride())
        return self._recording.parameter(shape, strides, like.dtype)

    def _constrain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Activations of a loop stay divided as the batch is: the partitioner would else be free to
        divide them as the weights are."""
        shard = self._shard
        assert shard is not None
        if not any(
            isinstance(v, torch.Tensor) and shard.dim_of("input", "", v.shape, False) == 0
            for v in pytree.tree_leaves((args, kwargs))
        ):
            return

        def by_batch(x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] % shard.devices:
                return x
            return constrain(x, shard.sharding(x.dim(), 0))

        for scanned in self._scans:
            scanned.constrain = by_batch

    # --- the call -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _scopes(self) -> Iterator[None]:
        """Ops are labelled by the module whose forward calls them."""
        names = {id(c): n for m in self._modules for n, c in m.named_modules()}
        for scanned in self._scans:
            prefix = names.get(id(scanned), "layers.0").removesuffix(".0")
            for n, c in scanned.layer[0].named_modules():
                names[id(c)] = f"{prefix}.*.{n}".rstrip(".")
        stack = [""]

        def enter(module: nn.Module, *_: Any) -> None:
            stack.append(names.get(id(module), stack[-1]))
            _C._record_scope(stack[-1])

        def leave(module: nn.Module, *_: Any) -> None:
            stack.pop()
            _C._record_scope(stack[-1])

        _C._record_scope("")
        hooks = nn.modules.module
        before = hooks.register_module_forward_pre_hook(enter)
        after = hooks.register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _results(self, result: Any, given: list[Any]) -> list[torch.Tensor]:
        storages = {v.untyped_storage()._cdata for v in given if isinstance(v, torch.Tensor)}
        out: list[torch.Tensor] = []
        for value in pytree.tree_leaves(result):
            if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
                continue
            value = value.detach()
            out.append(value.clone() if value.untyped_storage()._cdata in storages else value)
        return out

    def _finish(self, name: str, made: dict[str, Any], flat: list[Any]) -> Traced:
        for write, _, _, _ in made["outputs"]:
            if 0 <= write < len(self._arguments):
                self._arguments[write].donated = True
        text = made["text"]
        devices = 1
        if self._shard is not None:
            devices = self._shard.devices
            text = annotate(
                text,
                [self._shard.sharding(len(a.shape), a.divided) for a in self._arguments],
                devices,
            )
        made = {key: value for key, value in made.items() if key != "text"}
        traced = Traced(name, text, self._arguments, devices, text.count(" = "), made=made)
        traced.risks = self._risks(flat)
        traced.notes = [
            f"{len(layers)} layers in '{path}' are alike. With scan='{path}' they are one loop: "
            "it compiles many times faster"
            for module in self._modules
            for path, layers in find_stacks(module)
        ]
        if self._shard is not None:
            inputs = [(a.shape, a.divided) for a in self._arguments if a.kind == "input"]
            traced.notes += self._shard.note(inputs)
        return traced

    def _risks(self, flat: list[Any]) -> list[str]:
        risks = []
        numbers = [v for v in flat if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if numbers:
            risks.append(
                f"{len(numbers)} of the arguments are Python numbers: each new value is another "
                "program. Pass those that change as tensors"
            )
        for optimizer in self._optimizers:
            if any(not g.get("capturable", True) for g in optimizer.param_groups):
                risks.append(
                    f"{type(optimizer).__name__} counts its steps on the host: compiled as one "
                    "program, each step would be another one. Build it with capturable=True and "
                    "lr=torch.tensor(...)"
                )
        sizes = sorted({tuple(v.shape) for v in flat if isinstance(v, torch.Tensor)})
        odd = [s for s in sizes if s and s[0] % 8]
        if odd:
            risks.append(
                f"the batch of inputs {odd} is no multiple of 8. If it is a rest of the data, "
                "drop or pad it: each size is another program"
            )
        return risks


def _call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except AotError:
        raise
    except Exception as error:
        text = f"the model cannot be traced. {type(error).__name__}: {error}"
        if where := line_of(error).told():
            text += f"\n {where}"
        if "only being recorded" in text or "depends on values" in text:
            raise ValuesNeededError(
                f"{text}\nThe step reads values of tensors on the host (.item(), .cpu(), `if x > "
                "0`, a mask as an index); nothing has values ahead of time. `torch_tpu.lint` names "
                "all such lines."
            ) from error
        if not str(error).startswith("["):  # those of kernels say what to do
            text += "\nCall it with the same arguments on the CPU until it runs, then compile it."
        raise AotError(text) from error
