"""Spreading a program over the devices of a topology: which dimension of each argument is divided,
written into the module's text as annotations that the compiler's partitioner goes by."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.aot.topologies import AotError

# The kind of an argument ("parameter", "buffer", "state", "input"), its name and its shape; gives
# the dimension that is divided among the devices, or None for a copy on each.
Rule = Callable[[str, str, Sequence[int]], int | None]

_ARGUMENT = re.compile(r"%arg(\d+): (tensor<[^>]*>)(?: \{([^}]*)\})?")
_ALIAS = re.compile(r"tf\.aliasing_output = (\d+)")


@dataclass(frozen=True)
class Shard:
    """How a program is spread over `devices` of a topology.

    The default rule is what fully sharded data parallelism does: parameters and optimizer states
    are divided along their largest dimension that the devices divide, inputs along dim 0.
    `data_parallel` copies the parameters and divides the inputs only.
    """

    devices: int
    rule: Rule | None = None
    data_parallel: bool = False

    def dim_of(self, kind: str, name: str, shape: Sequence[int], stacked: bool) -> int | None:
        """The dimension of this argument that is divided."""
        if self.rule is not None:
            dim = self.rule(kind, name, shape)
            if dim is not None and not (0 <= dim < len(shape) and shape[dim] % self.devices == 0):
                raise AotError(
                    f"the rule for shards divides dim {dim} of {name} {list(shape)} among "
                    f"{self.devices} devices. Give a dimension that this number divides, or None."
                )
            return dim
        if kind == "input":
            return 0 if shape and shape[0] % self.devices == 0 else None
        if self.data_parallel:
            return None
        first = 1 if stacked else 0
        dims = [d for d in range(first, len(shape)) if shape[d] % self.devices == 0]
        if len(shape) - first < 2 or not dims:  # norms and biases are small
            return None
        return max(dims, key=lambda d: (shape[d], -d))

    def note(self, inputs: Sequence[tuple[Sequence[int], int | None]]) -> list[str]:
        """On shapes of inputs, and the dimension that was divided, where that is none at all."""
        whole = [tuple(shape) for shape, dim in inputs if shape and dim is None]
        if self.rule is not None or self.devices == 1 or len(whole) < len(inputs) or not whole:
            return []
        return [
            f"no input is divided: each of the {self.devices} devices does all of the work. Make "
            f"the first dimension of {whole} a multiple of {self.devices}, or give a rule "
            "(aot.Shard)"
        ]

    def sharding(self, rank: int, dim: int | None) -> str:
        """As the compiler writes it: "{devices=[4,1]<=[4]}"."""
        if dim is None or self.devices == 1:
            return "{replicated}"
        sides = [self.devices if d == dim else 1 for d in range(rank)]
        return f"{{devices=[{','.join(map(str, sides))}]<=[{self.devices}]}}"


class _Constrain(torch.autograd.Function):
    """Its gradient is spread as it is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sharding: str) -> torch.Tensor:
        ctx.sharding = sharding
        return _C._record_sharding(x, sharding)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _C._record_sharding(grad, ctx.sharding), None


def constrain(x: torch.Tensor, sharding: str) -> torch.Tensor:
    """The same values, spread over the devices like this; inside a trace only."""
    return _Constrain.apply(x, sharding)


def annotate(text: str, shardings: Sequence[str], devices: int) -> str:
    """The module with a sharding on each argument; further ones are replicated, and results that
    take an argument's memory lie as it does."""
    start = text.index("@main(")
    arrow = text.index(") -> (", start)
    end = text.index(") {\n", arrow)
    of_result: dict[int, str] = {}

    def argument(match: re.Match[str]) -> str:
        number = int(match[1])
        sharding = shardings[number] if number < len(shardings) else "{replicated}"
        alias = _ALIAS.search(match[3] or "")
        if alias:
            of_result[int(alias[1])] = sharding
        rest = f", {match[3]}" if match[3] else ""
        return f'%arg{number}: {match[2]} {{mhlo.sharding = "{sharding}"{rest}}}'

    head = _ARGUMENT.sub(argument, text[start:arrow])
    count = iter(range(len(text)))

    def result(match: re.Match[str]) -> str:
        return f'{match[0]} {{mhlo.sharding = "{of_result.get(next(count), "{replicated}")}"}}'

    results = re.sub(r"tensor<[^>]*>", result, text[arrow:end])
    name_end = text.index(" {\n")
    attributes = (
        f" attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32}}"
    )
    return text[:name_end] + attributes + text[name_end:start] + head + results + text[end:]
