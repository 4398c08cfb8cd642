"""A mesh: the devices of this process on named axes, in an order that follows the wires between
them; and how a tensor is divided over it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from torch_tpu import _C
from torch_tpu.spmd._torus import torus_order

Placements = Sequence[Placement] | Mapping[str, Placement]


class Mesh:
    """Devices on named axes. `devices` are indices (tpu:N), the last axis running fastest."""

    def __init__(
        self, shape: Sequence[int], names: Sequence[str], devices: Sequence[int] | None = None
    ) -> None:
        self.shape = tuple(shape)
        self.names = tuple(names)
        if len(self.shape) != len(self.names) or len(set(self.names)) != len(self.names):
            raise ValueError(f"a mesh of shape {self.shape} with axes {self.names}: one name each")
        if not self.shape or min(self.shape) < 1 or not all(n.isidentifier() for n in self.names):
            raise ValueError(f"not a mesh: shape {self.shape}, axes {self.names}")
        size = math.prod(self.shape)
        if devices is None:
            attributes = _C._device_attributes()
            if len(attributes) < size:
                raise ValueError(
                    f"a mesh of {size} devices, but this process has {len(attributes)}. On XLA:CPU "
                    f"TORCH_TPU_CPU_DEVICES={size}, set before the first tensor, gives that many."
                )
            devices = torus_order(attributes[:size], self.shape)
        self.devices = tuple(devices)
        if len(self.devices) != size or len(set(self.devices)) != size:
            raise ValueError(f"{size} different devices, not {self.devices}")

    @property
    def size(self) -> int:
        """How many devices."""
        return len(self.devices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        axes = ", ".join(f"{n}={s}" for n, s in zip(self.names, self.shape, strict=True))
        return f"Mesh({axes})"

    def _key(self) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...]]:
        return self.shape, self.names, self.devices

    def placements(self, given: Placements | None) -> tuple[Placement, ...]:
        """One per axis, from such a list or from a dict by axis; what is not named is a copy."""
        if given is None:
            given = {}
        if isinstance(given, Mapping):
            unknown = set(given) - set(self.names)
            if unknown:
                raise ValueError(f"no axis of {self} is called {sorted(unknown)}")
            given = [given.get(name, Replicate()) for name in self.names]
        if len(given) != len(self.names):
            raise ValueError(f"{len(given)} placements for the {len(self.names)} axes of {self}")
        for placement in given:
            if isinstance(placement, Partial) or not isinstance(placement, (Shard, Replicate)):
                raise ValueError(f"{placement!r}: a tensor of a mesh is divided or copied")
        return tuple(given)

    def parts(
        self, shape: Sequence[int], placements: Sequence[Placement]
    ) -> Iterator[tuple[slice, ...]]:
        """Per device, which elements of a tensor of that shape it holds."""
        counts = self.counts(shape, placements)
        for where in itertools.product(*map(range, self.shape)):
            index = [0] * len(shape)
            for position, size, placement in zip(where, self.shape, placements, strict=True):
                if isinstance(placement, Shard):
                    dim = placement.dim % len(shape)
                    index[dim] = index[dim] * size + position
            yield tuple(
                slice(i * n // c, (i + 1) * n // c)
                for i, n, c in zip(index, shape, counts, strict=True)
            )

    def counts(self, shape: Sequence[int], placements: Sequence[Placement]) -> list[int]:
        """Into how many parts each dimension is divided."""
        counts = [1] * len(shape)
        for name, size, placement in zip(self.names, self.shape, placements, strict=True):
            if not isinstance(placement, Shard):
                continue
            if not -len(shape) <= placement.dim < len(shape):
                raise ValueError(f"{placement!r} over '{name}' of a tensor of shape {tuple(shape)}")
            counts[placement.dim % len(shape)] *= size
        for dim, (length, count) in enumerate(zip(shape, counts, strict=True)):
            if length % count:
                raise ValueError(
                    f"dimension {dim} of a tensor of shape {tuple(shape)} cannot be divided into "
                    f"{count} equal parts"
                )
        return counts

    def group(self, *axes: str) -> str:
        """The devices along these axes, as the group of a functional collective inside a function
        that `per_device` runs."""
        from torch_tpu.spmd._collectives import group_name

        return group_name(self.shape, self.names, axes)

    def sharding(self, rank: int, placements: Sequence[Placement]) -> str:
        """The same for Shardy."""
        axes: list[list[str]] = [[] for _ in range(rank)]
        for name, placement in zip(self.names, placements, strict=True):
            if isinstance(placement, Shard):
                axes[placement.dim % rank].append(f'"{name}"')
        dims = ", ".join("{" + ", ".join(names) + "}" for names in axes)
        return f"#sdy.sharding<@mesh, [{dims}]>"

    def declaration(self) -> str:
        """The mesh as an op of a module."""
        axes = ", ".join(f'"{n}"={s}' for n, s in zip(self.names, self.shape, strict=True))
        return f"sdy.mesh @mesh = <[{axes}]>"


def mesh(shape: Sequence[int], names: Sequence[str], devices: Sequence[int] | None = None) -> Mesh:
    """The devices of this process on named axes, `mesh((2, 4), ("dp", "tp"))`. Where devices have
    places on a torus, those along the last axis are neighbours; `devices` names another order."""
    return Mesh(shape, names, devices)
