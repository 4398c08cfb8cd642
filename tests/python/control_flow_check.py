"""How test_control_flow*.py compare: a function on the device against CPU eager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from torch_tpu._compile import backend

Tree = Any
Function = Callable[..., Tree]


def compiled(f: Function, **options: Any) -> Function:
    """One graph, one program: anything else is an error."""
    torch._dynamo.reset()
    return torch.compile(
        f, backend=backend, fullgraph=True, options={"fallback": "error", **options}
    )


def eager(f: Function) -> Function:
    return f


def to(tree: Tree, device: str) -> Tree:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to(device), tree)


def is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def with_gradients(f: Function, args: Tree, which: Tree) -> Tree:
    """The results of f and the gradients of those arguments that `which` marks."""
    args = pytree.tree_map(lambda t, w: t.requires_grad_() if w and is_float(t) else t, args, which)
    results = f(*args)
    outputs = [t for t in pytree.tree_leaves(results) if is_float(t) and t.requires_grad]
    # Not all ones: a gradient must reach its own element.
    torch.autograd.backward(
        outputs,
        [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t.device) for t in outputs],
    )
    return results, [t.grad for t in pytree.tree_leaves(args) if is_float(t)]


def check(
    f: Function, *args: Tree, how: Callable[[Function], Function] = compiled, grad: bool = False
) -> Tree:
    which = pytree.tree_map(lambda _: True, args)
    run = functools.partial(with_gradients, which=which) if grad else lambda g, a: g(*a)
    expected = run(f, to(args, "cpu"))
    actual = run(how(f), to(args, "tpu"))
    for leaf in pytree.tree_leaves(actual):
        assert not isinstance(leaf, torch.Tensor) or leaf.device.type == "tpu"
    torch.testing.assert_close(to(actual, "cpu"), to(expected, "cpu"))
    return actual


both_ways = pytest.mark.parametrize("how", [compiled, eager])
gradients = pytest.mark.parametrize("grad", [False, True], ids=["forward", "gradients"])


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + 1))
