"""Runs a recorded function of parts: as a program of its own, or, inside a function of `compile`,
as a part of the program that is being made."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Replicate, Shard

from torch_tpu import _C
from torch_tpu.pallas._jax import extract_functions
from torch_tpu.spmd._parts import How, Local, channels, over, signature
from torch_tpu.spmd._program import Argument
from torch_tpu.spmd._tensor import ShardedTensor, over_mesh
from torch_tpu.spmd._trace import Trace, tracing

_OP = "torch_tpu_spmd::on_every_device"
_library: torch.library.Library | None = None
_lowered: dict[str, Any] = {}  # by what is in it


def run(local: Local, tensors: Sequence[ShardedTensor]) -> list[ShardedTensor]:
    """Tensors of its mesh, however they are divided."""
    trace = tracing()
    if trace is not None:
        return _inside(trace, local, tensors)
    program = local.program([t.placements for t in tensors])
    parts = program.run([t.parts for t in tensors])
    return [over_mesh(local.mesh, h, p) for h, p in zip(local.wholes, parts, strict=True)]


def _inside(trace: Trace, local: Local, tensors: Sequence[ShardedTensor]) -> list[ShardedTensor]:
    if not all(local.kept):
        raise RuntimeError(
            "[spmd] random numbers in a function of per_device inside one of spmd.compile: draw "
            "them outside of it, and give them as an argument"
        )
    _define()
    everywhere: How = tuple(Shard(0) for _ in local.mesh.names)
    checks = local.module["checks"]
    # Each call has channels of its own: they tell collectives apart that run at the same time.
    text = over(local, None, [everywhere] * len(checks), trace.channels)
    trace.channels += channels(local)
    key = hashlib.sha256(text.encode()).hexdigest()
    if key not in _lowered:
        takes, gives = signature(text)
        _lowered[key] = (*extract_functions(text, "spmd"), takes, gives)

    def record(*args: torch.Tensor) -> list[torch.Tensor]:
        found = list(torch.ops.torch_tpu_spmd.on_every_device(list(args), key))
        count = len(local.wholes)
        for flag, (kind, message) in zip(found[count:], checks, strict=True):
            # A device that found nothing gives the lowest number.
            every = _C._record_sharding(flag, "{replicated}")
            _C._record_check(every.amax(), kind, message)
        return found[:count]

    constants = [_constant(local, parts) for parts in local.kept]
    return trace.note(record, [*tensors, *constants], local.wholes)


def _constant(local: Local, parts: list[torch.Tensor]) -> ShardedTensor:
    everyone: How = tuple(Replicate() for _ in local.mesh.names)
    how = Argument(everyone, parts[0].dtype, tuple(parts[0].shape))
    return over_mesh(local.mesh, how, parts)


def _lower(described: list[tuple[str, Any]], _platform: str, _precision: str) -> Any:
    return _lowered[described[1][1]]


def _define() -> None:
    global _library
    if _library is None:
        _library = torch.library.Library("torch_tpu_spmd", "FRAGMENT")
        _library.define("on_every_device(Tensor[] inputs, str program) -> Tensor[]")
        _C._register_foreign(_OP, [], _lower, None, False)
