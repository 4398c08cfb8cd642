"""The error inputs of an OpInfo entry: does the device raise what the CPU raises?"""

from __future__ import annotations

from typing import Any

from .compare import DEVICE, tensors_of
from .op_checks import OPS, SkipError, call


def check_errors(name: str) -> dict[str, Any]:
    """How many error inputs raise what the CPU raises; the words too; the first that does not."""
    op = OPS[name]
    if op.error_inputs_func is None:
        raise SkipError("no error inputs")
    counts: dict[str, Any] = {"inputs": 0, "same_type": 0, "same_message": 0}
    for error_input in op.error_inputs("cpu"):
        sample = error_input.sample_input
        want = _raised(op, sample, "cpu")
        if want is None:  # the CPU accepts it in this version
            continue
        got = _raised(op, sample, DEVICE)
        counts["inputs"] += 1
        if type(got) is type(want):
            counts["same_type"] += 1
            if _words(got) == _words(want):
                counts["same_message"] += 1
        elif "detail" not in counts:
            counts["detail"] = f"CPU: {_describe(want)}; device: {_describe(got)}"
    return counts


def _raised(op: Any, sample: Any, device: str) -> Exception | None:
    try:
        _, result = call(op, sample, device)
        for x in tensors_of(result):
            x.cpu()
    except Exception as error:
        return error
    return None


def _words(error: Exception | None) -> str:
    text = str(error).split("\nException raised from")[0].strip()
    return text.replace("tpu:0", "cpu").replace("tpu", "cpu").replace("PrivateUse1", "CPU")


def _describe(error: Exception | None) -> str:
    return "nothing raised" if error is None else f"{type(error).__name__}: {str(error)[:120]}"
