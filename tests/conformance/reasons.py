"""Why an entry is not right, where the reason is known and will stay for now."""

from __future__ import annotations

_SPARSE = "sparse layouts are not supported on this device"
_JITERATOR = "jiterator compiles CUDA source; the CPU has no such kernel either"

REASONS = {
    "sparse.sampled_addmm": _SPARSE,
    "sparse.mm.reduce": _SPARSE,
    "to_sparse": _SPARSE,
    "chalf": "XLA has no complex type of 16-bit parts",
    "jiterator_unary": _JITERATOR,
    "jiterator_binary": _JITERATOR,
    "jiterator_binary_return_by_ref": _JITERATOR,
    "jiterator_4inputs_with_extra_args": _JITERATOR,
    "jiterator_2inputs_2outputs": _JITERATOR,
}
