"""A function of parts that has gradients: a program for forward, which also gives what backward
needs, and one for backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.distributed.tensor.placement_types import Shard

from torch_tpu.spmd._inline import run
from torch_tpu.spmd._joint import count_copies_once, trace_joint
from torch_tpu.spmd._mesh import Mesh
from torch_tpu.spmd._parts import How, Local, Part, record
from torch_tpu.spmd._tensor import ShardedTensor
from torch_tpu.spmd._trace import pause


@dataclass
class _Saved:
    """A value of forward that backward takes: that of `source`, seen through `views`."""

    source: fx.Node
    views: list[fx.Node]


class Differentiable:
    """Called with tensors of the mesh; gives those that the function returns."""

    forward: Local

    def __init__(
        self,
        mesh: Mesh,
        name: str,
        inputs: Sequence[Part],
        wanted: Sequence[bool],
        function: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
        results: Callable[[int], Sequence[How]],
    ) -> None:
        from torch_tpu._compile import partition

        self._mesh = mesh
        self._name = name
        self._inputs = list(inputs)
        joint, self._flags = trace_joint(mesh, inputs, wanted, function)
        count = len(self._flags)
        self._results = [mesh.placements(how) for how in results(count)]
        count_copies_once(mesh, joint, [part.how for part in inputs], self._results, self._flags)
        self._fw, self._bw = partition.split(joint, None, num_fwd_outputs=count)
        output: Any = next(iter(self._fw.graph.find_nodes(op="output")))
        self._outs: list[fx.Node] = list(output.args[0][:count])
        self._saved = [_saved(node, self._outs) for node in output.args[0][count:]]
        given = self._fw.graph.find_nodes(op="placeholder")
        # Values that backward reads, each once: arguments, results, and others that forward gives.
        sources = list(dict.fromkeys(s.source for s in self._saved if s.source.op != "get_attr"))
        self._from_inputs = [given.index(n) for n in sources if n in given]
        self._from_outs = [self._outs.index(n) for n in sources if n in self._outs]
        self._extra = [n for n in sources if n not in given and n not in self._outs]
        self._sources = [
            *(given[i] for i in self._from_inputs),
            *(self._outs[i] for i in self._from_outs),
            *self._extra,
        ]
        output.args = ((*self._outs, *self._extra),)
        everywhere: How = tuple(Shard(0) for _ in mesh.names)
        hows = [*self._results, *(everywhere for _ in self._extra)]
        self._kinds = [
            *(self._inputs[i] for i in self._from_inputs),
            *(Part(_shape(self._outs[i]), _dtype(self._outs[i]), hows[i]) for i in self._from_outs),
            # A number cannot be divided over the devices; a row of one can.
            *(Part(_shape(n) or (1,), _dtype(n), everywhere) for n in self._extra),
        ]
        self.forward = record(mesh, name, self._inputs, self._run_forward, lambda _: hows)
        self.backward: dict[tuple[bool, ...], Local] = {}  # by which results have gradients

    def __call__(self, tensors: Sequence[ShardedTensor]) -> Sequence[ShardedTensor]:
        made: Any = _Apply.apply(self, *tensors)
        return tuple(made)

    def _run_forward(self, stand_ins: list[torch.Tensor]) -> list[torch.Tensor]:
        from torch_tpu._compile.interpreter import run_module

        with torch._C._DisableAutocast(), _plain_errors():
            found = list(run_module(self._fw, stand_ins))
        count = len(self._outs)
        return found[:count] + [x.reshape(1) if x.dim() == 0 else x for x in found[count:]]

    def keep(self, ctx: Any, tensors: Sequence[Any], made: list[Any]) -> list[Any]:
        """Takes what backward needs of forward's results; leaves the function's."""
        outs = made[: len(self._outs)]
        ctx.save_for_backward(
            *(tensors[i] for i in self._from_inputs),
            *(outs[i] for i in self._from_outs),
            *made[len(self._outs) :],
        )
        ctx.mark_non_differentiable(
            *(t for t, flag in zip(outs, self._flags, strict=True) if not flag)
        )
        ctx.set_materialize_grads(False)
        return outs

    def run_backward(self, ctx: Any, grads: Sequence[Any]) -> list[Any]:
        """Gradients of the arguments, None where there is none."""
        tangents = [g for g, flag in zip(grads, self._flags, strict=True) if flag]
        present = tuple(g is not None for g in tangents)
        if not any(present):
            return [None] * len(self._inputs)
        for grad in tangents:
            if grad is not None and not isinstance(grad, ShardedTensor):
                raise TypeError(
                    f"[spmd] a gradient on {grad.device}: torch_tpu.spmd.shard puts it over a mesh"
                )
        if present not in self.backward:
            with pause():
                self.backward[present] = self._make_backward(present)
        given = [*ctx.saved_tensors, *(g for g in tangents if g is not None)]
        left = iter(run(self.backward[present], given))
        return [None if node is None else next(left) for node in self._grads()]

    def _grads(self) -> list[fx.Node | None]:
        output: Any = next(iter(self._bw.graph.find_nodes(op="output"))).args[0]
        return list(output)

    def _make_backward(self, present: tuple[bool, ...]) -> Local:
        tangents = [
            Part(_shape(n), _dtype(n), how)
            for n, how, flag in zip(self._outs, self._results, self._flags, strict=True)
            if flag
        ]
        inputs = [*self._kinds, *(t for t, flag in zip(tangents, present, strict=True) if flag)]
        results = [
            part.how
            for part, node in zip(self._inputs, self._grads(), strict=True)
            if node is not None
        ]

        def call(stand_ins: list[torch.Tensor]) -> list[torch.Tensor]:
            values = stand_ins[: len(self._kinds)]
            left = iter(stand_ins[len(self._kinds) :])
            return self._run_backward(values, [next(left) if flag else None for flag in present])

        return record(self._mesh, f"{self._name}_backward", inputs, call, lambda _: results)

    def _run_backward(
        self, values: list[torch.Tensor], tangents: list[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        from torch_tpu._compile.interpreter import attribute, evaluate, run_module, with_layout

        with torch._C._DisableAutocast(), _plain_errors():
            env: dict[fx.Node, Any] = {}
            for node, value in zip(self._sources, values, strict=True):
                env[node] = with_layout(value.reshape(_shape(node)), node.meta["val"])
            args = []
            for saved in self._saved:
                if saved.source.op == "get_attr":
                    env[saved.source] = attribute(self._fw, str(saved.source.target))
                evaluate(saved.views, env)
                args.append(env[saved.views[-1] if saved.views else saved.source])
            names = self._bw.graph.find_nodes(op="placeholder")[len(args) :]
            for node, tangent in zip(names, tangents, strict=True):
                like = node.meta["val"]
                if tangent is None:
                    tangent = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
                args.append(with_layout(tangent, like))
            return [x for x in run_module(self._bw, args) if x is not None]


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made_of: Differentiable, *tensors: ShardedTensor) -> Any:
        ctx.made_of = made_of
        return tuple(made_of.keep(ctx, tensors, run(made_of.forward, tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("[spmd] gradients of gradients (create_graph) through per_device")
        return None, *ctx.made_of.run_backward(ctx, grads)


class _plain_errors:  # noqa: N801
    """The error of an op, not that of the graph it is in."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        from torch_tpu._compile.interpreter import NodeError

        if isinstance(error, NodeError) and error.__cause__ is not None:
            raise error.__cause__ from None


def _saved(node: fx.Node, outs: list[fx.Node]) -> _Saved:
    """Not a view, which would be a copy, but what it views; unless that is kept for it alone and
    is larger."""
    chain = [node]
    while _is_view(chain[-1]) and isinstance(chain[-1].args[0], fx.Node):
        chain.append(chain[-1].args[0])
    if chain[-1].op == "call_function" and chain[-1] not in outs:
        while chain[-1].meta["val"].numel() > node.meta["val"].numel():
            chain.pop()
    return _Saved(chain[-1], chain[-2::-1])


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or schema.is_mutable:
        return False
    gives = schema.returns
    one = len(gives) == 1 and gives[0].alias_info is not None
    return one and isinstance(node.meta.get("val"), torch.Tensor) and len(node.all_input_nodes) == 1


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype
