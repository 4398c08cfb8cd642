"""A trace: the ops that a function calls on tensors of a mesh, in order, with shapes and without
values. It becomes a program when they are called again inside a recording."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from torch_tpu import _C
from torch_tpu.spmd._mesh import Mesh
from torch_tpu.spmd._program import Argument, Program, build
from torch_tpu.spmd._tensor import ShardedTensor

_aten = torch.ops.aten
_serial = itertools.count()
_READS = {_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default}


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor in the arguments of a call."""

    index: int


@dataclass
class Call:
    """One op."""

    func: Any
    args: Any
    kwargs: Any
    results: list[int | None]  # slots, in the order of the flattened results


class Trace(TorchDispatchMode):
    """While it is entered, ops are noted instead of run."""

    def __init__(self, mesh: Mesh | None = None) -> None:
        super().__init__()
        self.mesh = mesh
        self.inputs: list[ShardedTensor] = []
        self.calls: list[Call] = []
        self._slots: dict[int, int] = {}  # of inputs, by what holds their elements
        self._fakes: list[FakeTensor] = []
        self._made: list[weakref.ref[ShardedTensor]] = []
        self._fake_mode = FakeTensorMode(allow_non_fake_inputs=False)
        self.channels = 0  # taken by collectives in calls that are no ops

    # --- noting ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Notes one op; gives its results."""
        flat, spec = tree_flatten((args, kwargs))
        tensors = [v for v in flat if isinstance(v, torch.Tensor)]
        ours = [t for t in tensors if isinstance(t, ShardedTensor)]
        device = kwargs.get("device")
        makes = not tensors and device is not None and torch.device(device).type == "tpu"
        if not ours and not makes:
            return self._outside(func, args, kwargs, tensors)
        if func in _READS or (device is not None and torch.device(device).type != "tpu"):
            raise RuntimeError(
                f"[spmd] {func} reads values inside a compiled function, where there are none yet. "
                "Return the tensor and read it outside."
            )
        for tensor in tensors:
            if not isinstance(tensor, ShardedTensor):
                raise RuntimeError(
                    f"[spmd] {func} mixes tensors of a mesh with one on {tensor.device}, of shape "
                    f"{tuple(tensor.shape)}: its values would be kept for ever. Put it over the "
                    "mesh with torch_tpu.spmd.shard, or make it inside the function."
                )
        if makes:
            index = self._mesh_of(ours).devices[0]
            flat = [torch.device("tpu", index) if _is_device(v) else v for v in flat]
        noted = [Slot(self._slot_of(v)) if isinstance(v, ShardedTensor) else v for v in flat]
        fake_args, fake_kwargs = tree_unflatten(
            [self._fakes[v.index] if isinstance(v, Slot) else v for v in noted], spec
        )
        with self._fake_mode:
            found = func(*fake_args, **fake_kwargs)
        found = _masked(func, found, args, kwargs)
        known = {id(self._fakes[self._slot_of(t)]): t for t in ours}
        results: list[int | None] = []

        def wrap(value: Any) -> Any:
            if not isinstance(value, FakeTensor):
                if isinstance(value, torch.Tensor):
                    raise RuntimeError(f"[spmd] {func} makes a tensor on {value.device}")
                results.append(None)
                return value
            given = known.get(id(value))
            if given is not None:
                results.append(None)
                return given
            made = self._new(value, self._mesh_of(ours))
            results.append(made._slot)
            return made

        out = tree_map(wrap, found)
        call_args, call_kwargs = tree_unflatten(noted, spec)
        self.calls.append(Call(func, call_args, call_kwargs, results))
        return out

    def note(
        self, run: Callable[..., Any], tensors: Sequence[ShardedTensor], results: list[Argument]
    ) -> list[ShardedTensor]:
        """A call that is no op: `run` is called with the tensors when the program is recorded."""
        made = []
        with pause():
            mesh = self._mesh_of(list(tensors))
            args = tuple(Slot(self._slot_of(tensor)) for tensor in tensors)
            device = torch.device("tpu", mesh.devices[0])
            for what in results:
                with self._fake_mode:
                    fake: Any = torch.empty(what.shape, dtype=what.dtype, device=device)
                made.append(self._new(fake, mesh))
        self.calls.append(Call(run, args, {}, [tensor._slot for tensor in made]))
        return made

    def _outside(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """An op of other tensors. Those that read or write are not for a function that is run once
        and replayed."""
        if func in _READS or func._schema.is_mutable:
            raise RuntimeError(
                f"[spmd] {func} on a tensor on {tensors[0].device if tensors else 'cpu'} inside a "
                "compiled function would happen only once. Optimizers that count steps on the CPU "
                "take capturable=True."
            )
        return func(*args, **kwargs)

    def _mesh_of(self, tensors: list[ShardedTensor]) -> Mesh:
        for tensor in tensors:
            if self.mesh is None:
                self.mesh = tensor.mesh
            if tensor.mesh != self.mesh:
                raise RuntimeError(f"[spmd] tensors of two meshes: {self.mesh} and {tensor.mesh}")
        if self.mesh is None:
            raise RuntimeError("[spmd] no tensor of a mesh came before this one was made")
        return self.mesh

    def _slot_of(self, tensor: ShardedTensor) -> int:
        if tensor._parts is None:
            if tensor._slot < 0 or tensor._slot >= len(self._fakes):
                raise RuntimeError("[spmd] a value of another function that was traced")
            return tensor._slot
        self._mesh_of([tensor])
        slot = self._slots.get(id(tensor._parts))
        if slot is None:
            slot = self._slots[id(tensor._parts)] = len(self._fakes)
            _ = tensor.parts  # complains where they are out of date
            self.inputs.append(tensor)
            with self._fake_mode:
                fake = torch.empty(
                    tensor.shape,
                    dtype=tensor.dtype,
                    device=torch.device("tpu", tensor.mesh.devices[0]),
                )
            self._fakes.append(fake)  # type: ignore[arg-type]
        return slot

    def place_of(self, tensor: ShardedTensor) -> int:
        """Of a tensor that is there, among the inputs."""
        slot = self._slot_of(tensor)
        return list(self._slots.values()).index(slot)

    def _new(self, fake: FakeTensor, mesh: Mesh) -> ShardedTensor:
        made = ShardedTensor(mesh, mesh.placements(None), fake)
        made._slot = len(self._fakes)
        self._fakes.append(fake)
        self._made.append(weakref.ref(made))
        return made

    # --- afterwards ---

    def alive(self) -> list[ShardedTensor]:
        """What was made in it and is still held by somebody."""
        found = (ref() for ref in self._made)
        return [tensor for tensor in found if tensor is not None]

    def program(self, results: list[int], name: str) -> Program:
        """Compiles it; `results` are slots."""
        mesh = self._mesh_of([])
        slots = list(self._slots.values())
        with (
            torch.no_grad(),
            torch._C._AutoDispatchBelowAutograd(),
            torch._C._DisableAutocast(),
            _C._Recording(mesh.devices[0]) as recording,
        ):
            env: dict[int, torch.Tensor] = {}
            for slot in slots:
                fake = self._fakes[slot]
                shape = list(fake.shape)
                strides = list(torch.empty(shape, device="meta").stride())
                env[slot] = recording.parameter(shape, strides, fake.dtype)
            given = {id(t) for t in env.values()}
            for call in self.calls:
                _replay(call, env)
            out: list[torch.Tensor] = []
            for slot in results:
                value = env[slot]
                # Each a dense tensor of its own.
                shared = id(value) in given or any(value is other for other in out)
                out.append(value.clone() if shared else _C._plain(value))
            made = recording.module(name, out)
        arguments = [Argument(t.placements, t.dtype, tuple(t.shape)) for t in self.inputs]
        return build(f"{name}_{next(_serial)}", made, mesh, arguments)


def _masked(func: Any, found: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A backward op's results without those that nobody asked for, which shapes know nothing of."""
    names = [argument.name for argument in func._schema.arguments]
    if "output_mask" not in names or not isinstance(found, tuple):
        return found
    at = names.index("output_mask")
    mask = kwargs.get("output_mask", args[at] if at < len(args) else None)
    if mask is None or len(mask) != len(found):
        return found
    return tuple(value if wanted else None for value, wanted in zip(found, mask, strict=True))


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device)


def _replay(call: Call, env: dict[int, torch.Tensor]) -> None:
    def value_of(item: Any) -> Any:
        return env[item.index] if isinstance(item, Slot) else item

    is_leaf = lambda item: isinstance(item, Slot)  # noqa: E731
    args = tree_map(value_of, call.args, is_leaf=is_leaf)
    kwargs = tree_map(value_of, call.kwargs, is_leaf=is_leaf)
    found, _ = tree_flatten(call.func(*args, **kwargs))
    for slot, value in zip(call.results, found, strict=True):
        if slot is not None:
            env[slot] = value


def settings() -> tuple[Any, ...]:
    """What of PyTorch's state decides which ops a function calls and how they are lowered."""
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("tpu"),
        torch.get_autocast_dtype("tpu"),
        torch.get_default_dtype(),
        _C._settings_word(),  # float32 precision, compiler options
    )


def tracing() -> Trace | None:
    """What notes ops now, inside a function of `compile`."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = (mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Trace))
    return next(modes, None)


@contextlib.contextmanager
def pause() -> Iterator[None]:
    """Nothing is noted meanwhile."""
    from torch.utils._python_dispatch import _disable_current_modes

    if tracing() is None:
        yield
        return
    with _disable_current_modes():
        yield
