"""Numbers that only the program knows: a loop's integer carry, `.item()` inside a branch.

Under a recording they are 0-d tensors. Arithmetic and comparison give more of them; as an operand
of an ATen op they promote types as Python numbers do. Wherever a number must be known while
recording (a size, a Python `if`), they refuse, and the graph runs another way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C

aten = torch.ops.aten


def _binary(op: Callable[..., torch.Tensor], swapped: bool = False) -> Callable[[Any, Any], Any]:
    def apply(a: DeviceNumber, b: object) -> DeviceNumber:
        if not isinstance(b, (DeviceNumber, int, float)):
            return NotImplemented
        left, right = a.tensor, as_tensor(b, a.tensor.device)
        return number_of(op(right, left) if swapped else op(left, right))

    return apply


def _truediv(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a.double(), b.double())


def _floordiv(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="floor")


class DeviceNumber:
    """An int, float or bool of the program: a 0-d tensor of int64, float64 or bool."""

    __slots__ = ("tensor",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __bool__(self) -> bool:
        raise NotImplementedError("a decision in Python over a number that only the program knows")

    def __index__(self) -> int:
        raise NotImplementedError("a number that only the program knows, as a size or index")

    __int__ = __index__

    def __float__(self) -> float:
        raise NotImplementedError("a number that only the program knows, as a Python float")

    def __repr__(self) -> str:
        return f"DeviceNumber({self.tensor.dtype})"

    __add__ = _binary(torch.add)
    __radd__ = _binary(torch.add, swapped=True)
    __sub__ = _binary(torch.sub)
    __rsub__ = _binary(torch.sub, swapped=True)
    __mul__ = _binary(torch.mul)
    __rmul__ = _binary(torch.mul, swapped=True)
    __truediv__ = _binary(_truediv)
    __rtruediv__ = _binary(_truediv, swapped=True)
    __floordiv__ = _binary(_floordiv)
    __rfloordiv__ = _binary(_floordiv, swapped=True)
    __mod__ = _binary(torch.remainder)
    __rmod__ = _binary(torch.remainder, swapped=True)
    __pow__ = _binary(torch.pow)
    __rpow__ = _binary(torch.pow, swapped=True)
    __and__ = __rand__ = _binary(torch.bitwise_and)
    __or__ = __ror__ = _binary(torch.bitwise_or)
    __xor__ = __rxor__ = _binary(torch.bitwise_xor)
    __eq__ = _binary(torch.eq)
    __ne__ = _binary(torch.ne)
    __lt__ = _binary(torch.lt)
    __le__ = _binary(torch.le)
    __gt__ = _binary(torch.gt)
    __ge__ = _binary(torch.ge)

    def __neg__(self) -> DeviceNumber:
        return number_of(torch.neg(self.tensor))

    def __abs__(self) -> DeviceNumber:
        return number_of(torch.abs(self.tensor))


def number_of(tensor: torch.Tensor) -> DeviceNumber:
    """The tensor's one element, as `.item()` gives it."""
    wide = torch.int64
    if tensor.dtype.is_complex:
        raise NotImplementedError("a complex number that only the program knows")
    if tensor.dtype == torch.bool:
        wide = torch.bool
    elif tensor.dtype.is_floating_point:
        wide = torch.float64
    return DeviceNumber(tensor.reshape(()).to(wide))


def is_device_number(value: object) -> bool:
    return isinstance(value, DeviceNumber)


_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}


def as_tensor(value: Any, device: torch.device) -> torch.Tensor:
    """A number, known or not, as a 0-d tensor of its widest type."""
    if isinstance(value, DeviceNumber):
        return value.tensor
    if type(value) not in _DTYPES:
        raise NotImplementedError(f"a {type(value).__name__} as a number of the program")
    return torch.full((), value, dtype=_DTYPES[type(value)], device=device)


_SAMPLES = {torch.bool: True, torch.int64: 1, torch.float64: 1.0}


def _operand(number: DeviceNumber, others: list[torch.Tensor]) -> torch.Tensor:
    """The number as an operand beside these tensors, which then promote as with a Python number."""
    tensor = number.tensor
    if not others:
        return tensor
    other = max(others, key=lambda t: t.dim())
    dtype = torch.result_type(other, _SAMPLES[tensor.dtype])
    return tensor if torch.result_type(other, tensor) == dtype else tensor.to(dtype)


def _where(condition: Any, a: Any, b: Any) -> DeviceNumber:
    if not isinstance(condition, DeviceNumber):
        return a if condition else b
    device = condition.tensor.device
    return number_of(torch.where(condition.tensor, as_tensor(a, device), as_tensor(b, device)))


# Functions over symbolic numbers that Python's operators do not cover.
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.sym_not: lambda a: number_of(torch.logical_not(a.tensor)),
    torch.sym_float: lambda a: number_of(a.tensor.to(torch.float64)),
    torch.sym_max: _binary(torch.maximum),
    torch.sym_min: _binary(torch.minimum),
    torch.sym_ite: _where,
    operator.not_: lambda a: number_of(torch.logical_not(a.tensor)),
}


def _select(x: torch.Tensor, dim: int, index: DeviceNumber) -> torch.Tensor:
    return _C._record_select(x, dim, index.tensor)


def _full(size: Any, value: DeviceNumber, **options: Any) -> torch.Tensor:
    dtype = options.get("dtype") or value.tensor.dtype
    return value.tensor.to(dtype).expand(size).clone()


def _full_like(x: torch.Tensor, value: DeviceNumber, **options: Any) -> torch.Tensor:
    return value.tensor.to(options.get("dtype") or x.dtype).expand(x.shape).clone()


def _scalar_tensor(value: DeviceNumber, **options: Any) -> torch.Tensor:
    return value.tensor.to(options.get("dtype") or torch.get_default_dtype())


def _assert_scalar(condition: DeviceNumber, message: str) -> None:
    _C._record_assert(condition.tensor, message)


def _constrain_range(
    value: DeviceNumber, *, min: int | None = None, max: int | None = None
) -> None:
    for held, bound, how in (
        (min is None or value >= min, min, "at least"),
        (max is None or value <= max, max, "at most"),
    ):
        if isinstance(held, DeviceNumber):
            _assert_scalar(held, f"Invalid value range: expected {how} {bound}")


_OPS: dict[Any, Callable[..., Any]] = {
    aten.select.int: _select,
    aten.full.default: _full,
    aten.full_like.default: _full_like,
    aten.scalar_tensor.default: _scalar_tensor,
    aten._assert_scalar.default: _assert_scalar,
    aten.sym_constrain_range.default: _constrain_range,
    aten.sym_constrain_range_for_size.default: _constrain_range,
}


def call(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls an op of a graph with device numbers among its arguments."""
    special = _FUNCTIONS.get(target) or _OPS.get(target)
    if special is not None:
        return special(*args, **kwargs)
    if not isinstance(target, torch._ops.OpOverload):
        return target(*args, **kwargs)  # Python's operators
    for value, argument in zip(args, target._schema.arguments, strict=False):
        if isinstance(value, DeviceNumber):
            _check_operand(target, argument)
        elif pytree.tree_any(is_device_number, value):
            raise NotImplementedError(f"{target}: a size that only the program knows")
    for argument in target._schema.arguments:
        if isinstance(kwargs.get(argument.name), DeviceNumber):
            _check_operand(target, argument)
    others = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    args, kwargs = pytree.tree_map_only(DeviceNumber, lambda n: _operand(n, others), (args, kwargs))
    # The packet finds the overload that takes a tensor there.
    return target.overloadpacket(*args, **kwargs)


def _check_operand(target: torch._ops.OpOverload, argument: torch.Argument) -> None:
    if str(argument.type) not in ("Tensor", "number"):
        raise NotImplementedError(f"{target}: {argument.name} is a number only the program knows")
