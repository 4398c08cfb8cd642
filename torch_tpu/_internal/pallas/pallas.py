"""What Helion and others take from this module: a JAX function that is called with tensors, without
the schema of an op."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_tpu.pallas import _jax, _op, get_pallas_mesh, jax_op
from torch_tpu.pallas._define import _check_mesh
from torch_tpu.pallas._signature import Parameter

__all__ = [
    "JaxCallable",
    "get_default_pallas_mesh",
    "get_pallas_mesh",
    "jax_op",
    "jax_placeholder",
]


def jax_placeholder(tensor: torch.Tensor) -> Any:
    """A jax.ShapeDtypeStruct like the tensor."""
    return _jax.struct((_op._HLO_OF_TORCH[tensor.dtype], tuple(tensor.shape)))


def get_default_pallas_mesh() -> Any:
    """The mesh of all ranks on one axis."""
    return get_pallas_mesh()


# Ops live as long as the process does: graphs that hold one may outlive its JaxCallable. By name,
# for each function that was given under it.
_definitions: dict[str, list[tuple[Callable[..., Any], _op.Definition]]] = {}


class JaxCallable:
    """A jitted JAX function, called with tensors. Arguments of `input_output_aliases` (argument to
    result) become those results. Traced once per shapes, as an op."""

    __slots__ = (
        "_definition",
        "donate_argnums",
        "input_output_aliases",
        "input_partition_specs",
        "jit_fn",
        "kernel_key_to_mlir_fingerprint",
        "mesh",
        "name",
        "output_shapes",
        "static_argnums",
        "trace_key",
    )

    def __init__(
        self,
        name: str,
        jit_fn: Callable[..., Any],
        trace_key: str,
        mesh: Any = None,
        input_partition_specs: Any = None,
        input_output_aliases: Mapping[int, int] | None = None,
        donate_argnums: Sequence[int] = (),
        static_argnums: Sequence[int] = (),
    ) -> None:
        _check_mesh(name, mesh)
        if static_argnums:
            raise NotImplementedError(
                f"[{name}] static arguments have no place in a JaxCallable here: define it with "
                f"torch_tpu.pallas.jax_op, where they are arguments annotated as int, float or str."
            )
        if input_partition_specs is not None:
            raise NotImplementedError(
                f"[{name}] input_partition_specs={input_partition_specs!r}: a JaxCallable runs on "
                f"one device here and splits nothing. Leave it at None; torch_tpu.spmd.per_device "
                f"runs an op on the shards of a mesh."
            )
        self.name = name
        self.jit_fn = jit_fn
        self.trace_key = trace_key
        self.mesh = mesh
        self.input_partition_specs = input_partition_specs
        self.input_output_aliases = dict(input_output_aliases or {})
        self.donate_argnums = tuple(donate_argnums)
        self.static_argnums = tuple(static_argnums)
        # Caches of theirs, which clients look into; ours are those of programs.
        self.output_shapes: dict[Any, Any] = {}
        self.kernel_key_to_mlir_fingerprint: dict[Any, Any] = {}
        self._definition = self._define()

    def _define(self) -> _op.Definition:
        digest = hashlib.sha256(self.trace_key.encode()).hexdigest()[:16]
        short = f"{re.sub(r'[^A-Za-z0-9_]', '_', self.name)}_{digest}"
        function = self.jit_fn
        with _op._lock:
            made = _definitions.setdefault(short, [])
            for known, definition in made:
                if known is function:
                    return definition
            # Another function of the same name and key: an op of its own.
            name = f"torch_tpu_jax::{short}" + (f"_{len(made)}" if made else "")
            definition = self._new_op(name, function)
            made.append((function, definition))
            return definition

    @staticmethod
    def _new_op(name: str, function: Callable[..., Any]) -> _op.Definition:
        def run(args: dict[str, Any]) -> Sequence[Any]:
            results = function(*args["tensors"])
            return list(results) if isinstance(results, (tuple, list)) else [results]

        parameters = [Parameter("tensors", "Tensor[]")]
        return _op.Definition(name, parameters, run, None, differentiable=False)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        results = self._definition.overload(list(tensors))
        with torch.no_grad():
            for argument, result in self.input_output_aliases.items():
                tensors[argument].copy_(results[result])
        return results[0] if len(results) == 1 else tuple(results)
