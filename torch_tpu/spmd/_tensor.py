"""A tensor over the devices of a mesh. Its shape is that of the whole; each device holds a part, an
ordinary tensor. Ops on it are programs that XLA partitions: see _trace.py."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.placement_types import Placement, Replicate

from torch_tpu import _C
from torch_tpu.spmd._mesh import Mesh, Placements
from torch_tpu.spmd._program import Argument

_aten = torch.ops.aten


class ShardedTensor(torch.Tensor):
    """Made by `shard`; results of ops on such tensors are such tensors."""

    _parts: list[torch.Tensor] | None  # None while it is a value of a trace
    _mesh: Mesh
    _placements: tuple[Placement, ...]
    _slot: int  # in the trace
    # Where one device gives a view, a program of its own gives a copy. This is the version of the
    # base then: once either is written, the copy is no view of it. -1: not a view.
    _copied_at: int

    @staticmethod
    def __new__(
        cls, mesh: Mesh, placements: tuple[Placement, ...], like: torch.Tensor, parts: Any = None
    ) -> ShardedTensor:
        """`like` says size, strides and dtype of the whole."""
        self: ShardedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            like.size(),
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=torch.device("tpu", mesh.devices[0]),
        )
        self._parts = parts
        self._mesh = mesh
        self._placements = placements
        self._slot = -1
        self._copied_at = -1
        _alive[id(self)] = self
        return self

    @property
    def mesh(self) -> Mesh:
        """Whose devices hold it."""
        return self._mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Per axis of the mesh: divided along which dimension, or copied."""
        return self._placements

    @property
    def parts(self) -> list[torch.Tensor]:
        """Per device of the mesh: what it holds."""
        if self._parts is None:
            raise RuntimeError("[spmd] a value of a function that was traced, used after its end")
        if self._copied_at >= 0 and self._version != self._copied_at:
            raise RuntimeError(
                "[spmd] a view, which outside a compiled function is a copy, of a tensor that was "
                "written since. Take the view again, or do both inside a compiled function."
            )
        return list(self._parts)

    def full_tensor(self) -> torch.Tensor:
        """The whole on the first device of the mesh, as an ordinary tensor."""
        return gather(self).to(torch.device("tpu", self._mesh.devices[0]))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Not pickled: a file would not know the devices."""
        raise RuntimeError(
            "[spmd] save `tensor.full_tensor()`, and shard it again when it is loaded"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        where = ", ".join(
            f"{name}: {placement}"
            for name, placement in zip(self._mesh.names, self._placements, strict=True)
        )
        what = "traced" if self._parts is None else str(gather(self))
        return f"ShardedTensor({what}, {where})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """One op."""
        from torch_tpu.spmd._eager import run

        return run(func, args, kwargs or {})


# Those whose `.grad` a traced function may use.
_alive: weakref.WeakValueDictionary[int, ShardedTensor] = weakref.WeakValueDictionary()


def leaves() -> list[ShardedTensor]:
    """All tensors that collect gradients."""
    return [t for t in list(_alive.values()) if t.is_leaf and t.requires_grad]


def over_mesh(mesh: Mesh, how: Argument, parts: list[torch.Tensor]) -> ShardedTensor:
    """The tensor that such parts make up."""
    like = torch.empty(how.shape, dtype=how.dtype, device="meta")
    return ShardedTensor(mesh, how.placements, like, parts)


def gather(tensor: ShardedTensor) -> torch.Tensor:
    """The whole on the CPU."""
    parts = tensor.parts
    whole = torch.empty(tensor.shape, dtype=tensor.dtype)
    done = set()
    for part, index in zip(parts, tensor.mesh.parts(tensor.shape, tensor.placements), strict=True):
        key = tuple((s.start, s.stop) for s in index)
        if key not in done:
            done.add(key)
            whole[index] = part.cpu()
    return whole


def shard(tensor: torch.Tensor, mesh: Mesh, placements: Placements | None = None) -> ShardedTensor:
    """The tensor over the devices of the mesh. `placements`: `Shard(dim)` or `Replicate()` per axis
    of the mesh, as a list or as a dict by name; an axis that is left out holds copies. Dimensions
    must divide. A leaf that requires gradients gives another one."""
    chosen = mesh.placements(placements)
    host = gather(tensor) if isinstance(tensor, ShardedTensor) else tensor.detach().cpu()
    parts = []
    for device, index in zip(mesh.devices, mesh.parts(tensor.shape, chosen), strict=True):
        part = host[index].clone(memory_format=torch.contiguous_format)
        parts.append(_C._plain(part.to(torch.device("tpu", device))))
    like = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    made = ShardedTensor(mesh, chosen, like, parts)
    if tensor.requires_grad:
        made.requires_grad_()
    return made


def replicate(tensor: torch.Tensor, mesh: Mesh) -> ShardedTensor:
    """A copy of the tensor on every device."""
    return shard(tensor, mesh, [Replicate()] * len(mesh.names))


def shard_module(
    module: nn.Module, mesh: Mesh, plan: dict[str, Placements] | None = None
) -> nn.Module:
    """Puts the module's parameters and buffers over the mesh, in place. `plan` gives placements by
    name, shell patterns allowed: `{"*.up.weight": {"tp": Shard(0)}}`; the first that fits counts,
    and what none fits is copied. Tied parameters stay tied."""
    import fnmatch

    plan = plan or {}
    unused = set(plan)
    made: dict[int, ShardedTensor] = {}

    def put(name: str, tensor: torch.Tensor) -> ShardedTensor:
        for pattern in plan:
            if fnmatch.fnmatchcase(name, pattern):
                unused.discard(pattern)
                if id(tensor) not in made:
                    made[id(tensor)] = _named(name, tensor, mesh, plan[pattern])
                return made[id(tensor)]
        if id(tensor) not in made:
            made[id(tensor)] = replicate(tensor, mesh)
        return made[id(tensor)]

    for prefix, owner in module.named_modules():
        path = f"{prefix}." if prefix else ""
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None:
                new = put(path + name, parameter)
                if not isinstance(new, nn.Parameter):
                    kept = nn.Parameter(new, requires_grad=parameter.requires_grad)
                    made[id(parameter)] = kept  # type: ignore[assignment]
                    new = kept  # type: ignore[assignment]
                owner._parameters[name] = new
        for name, buffer in list(owner._buffers.items()):
            if buffer is not None:
                owner._buffers[name] = put(path + name, buffer)
    if unused:
        raise ValueError(f"no parameter or buffer has a name like {sorted(unused)}")
    return module


def _named(name: str, tensor: torch.Tensor, mesh: Mesh, placements: Placements) -> ShardedTensor:
    try:
        return shard(tensor, mesh, placements)
    except ValueError as error:
        raise ValueError(f"'{name}': {error}") from None
