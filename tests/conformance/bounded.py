"""Runs PyTorch's samples as programs of a larger bound, with NaN in what does not count.

    python -m conformance.bounded --ops 'linalg.*' --results bounded.jsonl

For each sample one size becomes symbolic wherever it occurs; the op is traced, recorded at the next
bound, run at the true size and compared with the CPU, gradients included. A sample is right, wrong,
or refused, which means that torch.compile would make a program per size.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_tpu import _C
from torch_tpu._compile.bounded import BoundedGraph
from torch_tpu._compile.plan import make_plan
from torch_tpu._compile.sizes import UnprovenError

from .compare import check_values, move, tolerances_of, widen
from .op_checks import DTYPES, OPS, dtypes_of, has_gradient, is_random, samples_of

DEVICE = "tpu"
# Not comparable for other reasons.
SKIPPED = {
    "to": "a device among the arguments",
    "full_like": "a device among the arguments",
    "svd_lowrank": "random",
    "pca_lowrank": "random",
    "native_batch_norm": "CPU saves no statistics in evaluation",
    "_native_batch_norm_legit": "CPU saves no statistics in evaluation",
}


class StaticError(Exception):
    """Tracing found that the size cannot vary."""


def sizes_of(sample: Any) -> list[int]:
    """Sizes of the first tensor that may vary, the most frequent last."""
    leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    first = next((x for x in leaves if isinstance(x, torch.Tensor) and x.dim() > 0), None)
    if first is None:
        return []
    return sorted({n for n in first.shape if n >= 2})


def traced(op: Any, sample: Any, size: int, grad: bool) -> tuple[Any, Any, Any]:
    """The graph with that size symbolic, its arguments on the device, and the function."""
    inputs = move((sample.input, tuple(sample.args), dict(sample.kwargs)), DEVICE)
    leaves, spec = tree_flatten(inputs)
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    if any(x.layout != torch.strided or x.device.type != DEVICE for x in tensors):
        raise StaticError("tensors of another kind")
    env = ShapeEnv(duck_shape=True)
    fakes = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    arguments = []
    for i, x in enumerate(tensors):
        dims = [DimDynamic.DUCK if n == size else DimDynamic.STATIC for n in x.shape]
        context = StatelessSymbolicContext(dynamic_sizes=dims)
        arguments.append(
            fakes.from_tensor(x.detach(), source=ConstantSource(f"a{i}"), symbolic_context=context)
        )

    def function(*given: torch.Tensor) -> Any:
        with torch.enable_grad():
            rest = iter(given)
            wanted = []
            now: list[Any] = []
            for leaf in leaves:
                if not isinstance(leaf, torch.Tensor):
                    now.append(leaf)
                    continue
                x = next(rest)
                if grad and leaf.requires_grad:
                    x = x.detach().requires_grad_()
                    wanted.append(x)
                now.append(x)
            first, args, kwargs = tree_unflatten(now, spec)
            result = op(first, *args, **kwargs)
            found = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
            if not grad:
                return found, []
            out = sample.output_process_fn_grad(result)
            roots = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
            roots = [t for t in roots if t.requires_grad]
            if not roots or not wanted:
                return [t.detach() for t in found], []
            tangents = [t.detach() * 0.25 + 1 for t in roots]
            grads = torch.autograd.grad(roots, wanted, tangents, allow_unused=True)
            return [t.detach() for t in found], [g for g in grads if g is not None]

    with fakes:
        graph = make_fx(function)(*arguments)
        # Autograd does not run under functionalize, so that is a second pass.
        graph = make_fx(torch.func.functionalize(graph, remove="mutations"))(*arguments)
    return graph, [x.detach() for x in tensors], function


def flat_outputs(graph: Any) -> None:
    """BoundedGraph takes a flat list of results."""
    output = next(iter(reversed(graph.graph.nodes)))
    output.args = (tree_flatten(output.args[0])[0],)


def check_sample(op: Any, sample: Any, size: int, grad: bool) -> str:
    graph, tensors, function = traced(op, sample, size, grad)
    flat_outputs(graph)
    plan = make_plan(graph)
    if not plan.on_device_only or plan.constants:
        raise UnprovenError("constants or CPU tensors")
    if not BoundedGraph.wanted(plan):
        raise StaticError("the size became a constant")
    bounded = BoundedGraph(plan, "bounded", None)
    bounded.keep_small = False
    actual = bounded(list(tensors))
    inputs = move([t.cpu() for t in tensors], "cpu")
    values, grads = function(*inputs)
    rtol, atol = tolerances_of(op, torch.float32)
    expected = tree_flatten((values, grads))[0]
    for x, y in zip(actual, expected, strict=True):
        if tuple(x.shape) != tuple(y.shape):
            raise AssertionError(f"shape {tuple(x.shape)}, CPU's {tuple(y.shape)}")

    def exact() -> Any:
        return tree_flatten(function(*[widen(x) for x in inputs]))[0]

    check_values([x.cpu() for x in actual], expected, rtol, atol, exact)
    ops = {
        str(node.target._schema.name.removeprefix("aten::"))
        + (f".{node.target._overloadname}" if node.target._overloadname != "default" else "")
        for node in plan.device
        if hasattr(node.target, "_schema")
    }
    return " ".join(sorted(ops))


def check(name: str, dtype: str, most: int) -> Iterator[dict[str, Any]]:
    op = OPS[name]
    kind = DTYPES[dtype]
    grad = has_gradient(op, kind)
    for number, sample in enumerate(samples_of(op, kind, most, grad)):
        for size, with_grad in itertools.product(sizes_of(sample), {grad, False}):
            answer = {"name": name, "dtype": dtype, "sample": number, "size": size}
            answer["grad"] = with_grad
            try:
                expected = op(sample.input, *sample.args, **sample.kwargs)
                if is_random(op, sample, expected):
                    continue
            except Exception:
                continue
            try:
                ops = check_sample(op, sample, size, with_grad)
                yield {**answer, "status": "right", "ops": ops}
            except UnprovenError as error:
                yield {**answer, "status": "refused", "why": str(error)[:200]}
            except AssertionError as error:
                yield {**answer, "status": "wrong", "why": str(error)[:300]}
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                wrong = "Mismatch" in type(error).__name__ or isinstance(error, IndexError)
                yield {**answer, "status": "wrong" if wrong else "static", "why": text[:300]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="*")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path("build/bounded.jsonl"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    _C._set_bounded_poison(True)
    counts: Counter[str] = Counter()
    patterns = options.ops.split(",")
    names = [n for n in OPS if n not in SKIPPED and any(fnmatch.fnmatch(n, p) for p in patterns)]
    with options.results.open("w") as out:
        for name in names:
            for dtype in options.dtypes.split(","):
                if dtype not in dtypes_of(OPS[name]):
                    continue
                for answer in check(name, dtype, options.samples):
                    counts[answer["status"]] += 1
                    out.write(json.dumps(answer) + "\n")
                    if answer["status"] == "wrong":
                        print(answer["name"], answer["size"], answer["why"], file=sys.stderr)
            out.flush()
    print(dict(counts))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
