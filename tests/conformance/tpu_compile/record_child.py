"""A child process that runs ops on the device while TORCH_TPU_DUMP records their programs."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..children import serve


def run(task: dict[str, Any]) -> dict[str, Any]:
    problems: list[str] = []

    def attempt(step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:
            problems.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")

    def every() -> None:
        for step in globals()[f"_{task['source']}"](task):
            attempt(step)

    attempt(every)
    return {"status": "done", "problems": problems}


def _opinfo(task: dict[str, Any]) -> Any:
    from ..op_checks import DTYPES, OPS, call, differentiable, gradients, has_gradient, samples_of

    op, dtype = OPS[task["name"]], DTYPES[task["dtype"]]
    grad = has_gradient(op, dtype) and (dtype.is_floating_point or dtype.is_complex)
    for sample in samples_of(op, dtype, task["samples"], grad):

        def step(sample: Any = sample) -> None:
            inputs, result = call(op, sample, "tpu")
            if grad:
                gradients(inputs, differentiable(sample, result))

        yield step


def _case(task: dict[str, Any]) -> Any:
    """The cases of a family's tests, all dtypes, forward and gradient."""
    import torch
    from _pytest.mark import ParameterSet

    module = importlib.import_module(f"ops.{task['name']}")
    from ops.harness import Case, tensors_of, to_device

    def step(case: Case, dtype: torch.dtype) -> None:
        args, kwargs = to_device(case.make(dtype))
        outputs = [x for x in tensors_of(case.fn(*args, **kwargs)) if x.requires_grad]
        inputs = [x for x in tensors_of((args, kwargs)) if x.requires_grad]
        if case.grad and outputs and inputs:
            ones = [torch.ones_like(x) for x in outputs]
            torch.autograd.grad(outputs, inputs, ones, allow_unused=True)

    for value in vars(module).values():
        for mark in getattr(value, "pytestmark", ()):
            for param in mark.args[1] if mark.name == "parametrize" else ():
                if isinstance(param, ParameterSet) and isinstance(param.values[0], Case):
                    case, dtype = param.values
                    yield lambda case=case, dtype=dtype: step(case, dtype)


def _explicit(task: dict[str, Any]) -> Any:
    from .cases import CASES, DTYPES, Make

    for dtype in DTYPES:
        yield lambda dtype=dtype: CASES[task["name"]](Make(dtype))


def _large(task: dict[str, Any]) -> Any:
    from .cases import DTYPES, Make
    from .large import LARGE

    def step(make: Make) -> None:
        result = LARGE[task["name"]](make)
        if result is not None and result.requires_grad:
            result.sum().backward()

    for dtype in DTYPES:
        yield lambda dtype=dtype: step(Make(dtype))


class _NoCases:
    """Leaves out the tests that _case() runs more cheaply."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [i for i in items if "case" not in getattr(i, "fixturenames", ())]


def _tests(task: dict[str, Any]) -> Any:
    """The tests of a family that are no cases."""
    import pytest

    file = Path(__file__).parents[2] / "python" / "ops" / f"{task['name']}.py"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    yield lambda: pytest.main([*options, str(file)], plugins=[_NoCases()])


def _optimizer(task: dict[str, Any]) -> Any:
    import torch

    from .. import other_checks

    yield lambda: other_checks.check_optimizer(task["name"], torch.float32)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(run)
