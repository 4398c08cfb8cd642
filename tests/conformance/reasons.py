"""Why an entry is not right, where the reason is known and will stay for now."""

from __future__ import annotations

_JITERATOR = "jiterator compiles CUDA source; the CPU has no such kernel either"

REASONS = {
    "jiterator_unary": _JITERATOR,
    "jiterator_binary": _JITERATOR,
    "jiterator_binary_return_by_ref": _JITERATOR,
    "jiterator_4inputs_with_extra_args": _JITERATOR,
    "jiterator_2inputs_2outputs": _JITERATOR,
}

_PIVOTS = "equal rows: which of equal pivots is taken is a matter of rounding"
_EMPTY = "the CPU alone gives empty statistics in evaluation; PyTorch's meta kernel gives ours"
_ROUNDING = "rounding; closer to the float64 result than the CPU"

# What is behind a difference that is no fault of the op on this device, or not known to be.
NOTES = {
    "lu": _PIVOTS,
    "linalg.lu": _PIVOTS,
    "linalg.lu_factor_ex": _PIVOTS,
    "linalg.cholesky_ex": "not positive definite: the contents are undefined, and `info` says so",
    "masked.median": "the CPU's median of an expanded input is not its median",
    "native_group_norm": "the CPU reads expanded weights as if they were contiguous",
    "nn.functional.max_pool1d": "the CPU overlooks the lazy negative bit",
    "native_batch_norm": _EMPTY,
    "_native_batch_norm_legit": _EMPTY,
    "ldexp": "the CPU's tangent is float64 where the result is float32",
    "matrix_exp": _ROUNDING + ", whose half-precision gradients are NaN",
    "linalg.cond": _ROUNDING,
    "tensor_split": "the test moves an index tensor to the device that belongs on the CPU",
    "nn.functional.interpolate.bicubic": "uint8: the CPU computes in fixed point; off by one",
    "quantile": "forward-mode derivative fails inside PyTorch on this device; not yet understood",
}
