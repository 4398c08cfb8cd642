"""When are two results the same? PyTorch's tolerances, and what cannot be compared by value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import tol
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = "tpu"

# Draw random numbers or leave memory as it is: only dtypes, shapes and strides can agree.
UNDEFINED_VALUES = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal"),
    *("uniform", "rand_like", "randn_like", "randint_like", "randn", "randint", "rand"),
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d"),
    *("nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "native_dropout"),
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu",
    # Random projections inside.
    *("pca_lowrank", "svd_lowrank"),
}


class MismatchError(Exception):
    """The device's result differs from the CPU's."""


def move(tree: Any, device: str | torch.device) -> Any:
    """The tree with its tensors on `device`: leaves with the same requires_grad."""

    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return _move_tensor(x, device).requires_grad_(x.requires_grad)
        if isinstance(x, torch.device):
            return torch.device(device)
        if isinstance(x, str) and x == "cpu":
            return str(device)
        return x

    return tree_map(one, tree)


def _move_tensor(x: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """With its strides and, for a view, the memory around it."""
    x = x.detach()
    if x.layout != torch.strided or x.is_conj() or x.is_neg():
        return x.to(device)
    size = x.untyped_storage().nbytes() // x.element_size()
    if size == x.numel() and x.is_contiguous():
        return x.to(device, copy=True)
    memory = torch.as_strided(x, (size,), (1,), 0).to(device, copy=True)
    return torch.as_strided(memory, x.shape, x.stride(), x.storage_offset())


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def tolerances_of(op: Any, dtype: torch.dtype) -> tuple[float, float]:
    """(rtol, atol): the defaults of torch.testing, widened by what the OpInfo itself allows."""
    rtol, atol = default_tolerances(dtype)
    for info in getattr(op, "decorators", ()):
        for decorator in getattr(info, "decorators", ()):
            for found in _overrides(decorator, dtype):
                rtol, atol = max(rtol, found.rtol), max(atol, found.atol)
    return rtol, atol


def _overrides(decorator: Any, dtype: torch.dtype) -> Iterator[Any]:
    """toleranceOverride gives pairs, precisionOverride an absolute tolerance."""
    found = getattr(decorator, "d", {}).get(dtype)
    if isinstance(found, float):
        yield tol(atol=found, rtol=0.0)
    elif found is not None:
        yield found


def check_layout(
    actual: Any,
    expected: Any,
    *,
    strides: bool = False,
    meta: Callable[[], Any] | None = None,
) -> None:
    """Same structure, dtypes and shapes; tensors where the CPU gives tensors.

    Where PyTorch's own kernels for accelerators differ from the CPU's (statistics of a norm in
    half precision), `meta` decides.
    """
    try:
        _check_layout(actual, expected, strides)
    except MismatchError:
        if meta is None:
            raise
        try:
            reference = meta()
        except Exception:
            reference = None
        if reference is None:
            raise
        _check_layout(actual, reference, strides)


def _check_layout(actual: Any, expected: Any, strides: bool) -> None:
    a, spec_a = tree_flatten(actual)
    e, spec_e = tree_flatten(expected)
    if len(a) != len(e):
        raise MismatchError(f"{len(a)} results ({spec_a}), CPU gives {len(e)} ({spec_e})")
    for i, (x, y) in enumerate(zip(a, e, strict=True)):
        if isinstance(x, torch.Tensor) != isinstance(y, torch.Tensor):
            raise MismatchError(f"result {i} is {type(x).__name__}, CPU's is {type(y).__name__}")
        if not isinstance(y, torch.Tensor):
            continue
        if x.dtype != y.dtype:
            raise MismatchError(f"result {i} has dtype {x.dtype}, CPU's {y.dtype}")
        if x.shape != y.shape:
            raise MismatchError(f"result {i} has shape {tuple(x.shape)}, CPU's {tuple(y.shape)}")
        if strides and x.layout == torch.strided and x.stride() != y.stride():
            raise MismatchError(f"result {i} has strides {x.stride()}, CPU's {y.stride()}")


def check_values(
    actual: Any,
    expected: Any,
    rtol: float,
    atol: float,
    exact: Callable[[], Any] | None = None,
    what: str = "result",
) -> None:
    """Close to the CPU's values, or no further than the CPU from what `exact` (float64) says."""
    for i, (x, y) in enumerate(
        zip(tree_flatten(actual)[0], tree_flatten(expected)[0], strict=True)
    ):
        if not isinstance(y, torch.Tensor):
            if x != y and not (isinstance(y, float) and abs(x - y) <= atol + rtol * abs(y)):
                raise MismatchError(f"{what} {i} is {x}, CPU's {y}")
            continue
        if x.shape != y.shape or x.dtype != y.dtype:
            continue  # check_layout has decided on that
        x, y = (t.detach().to_dense() if t.layout != torch.strided else t.detach() for t in (x, y))
        x = x.cpu().resolve_conj().resolve_neg()
        y = y.resolve_conj().resolve_neg()
        if y.is_floating_point() and y.element_size() == 1:
            x, y = x.float(), y.float()
        # An op of integers may well give floats: their tolerance is that of the result's dtype.
        least_rtol, least_atol = default_tolerances(y.dtype)
        rtol, atol = max(rtol, least_rtol), max(atol, least_atol)
        try:
            torch.testing.assert_close(x, y, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            reference = tree_flatten(exact())[0] if exact is not None else []
            if i < len(reference) and _no_worse(x, y, reference[i], rtol, atol):
                continue
            raise MismatchError(f"{what} {i}: {' '.join(str(error).split())[:300]}") from None


WIDER = {
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def widen(tree: Any) -> Any:
    """The tree in double precision."""

    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype in WIDER:
            return x.detach().to(WIDER[x.dtype]).requires_grad_(x.requires_grad)
        return WIDER.get(x, x) if isinstance(x, torch.dtype) else x

    return tree_map(one, tree)


def _no_worse(
    actual: torch.Tensor, cpu: torch.Tensor, exact: torch.Tensor, rtol: float, atol: float
) -> bool:
    """Rounding at other places is no error: the distance to the exact result is what counts."""
    if cpu.dtype not in WIDER or actual.shape != exact.shape or exact.dtype != WIDER[cpu.dtype]:
        return False
    exact = exact.detach()
    ours, theirs = ((t.to(exact.dtype) - exact).abs().nan_to_num(0, 0) for t in (actual, cpu))
    # Infinite or NaN where the CPU is, or finite and right where the CPU overflows on the way.
    same_special = (actual.isfinite() == cpu.isfinite()) | (actual.isfinite() & exact.isfinite())
    overflow = exact.abs() > torch.finfo(cpu.dtype).max / 2
    bound = 2 * theirs.max().clamp(min=0) + atol + rtol * exact.abs().nan_to_num(0, 0, 0)
    return bool(((ours <= bound) & same_special | overflow).all())
