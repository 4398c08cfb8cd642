"""The child process of a conformance run: one task, one check."""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

from .children import serve


def run(task: dict[str, Any]) -> dict[str, Any]:
    import torch

    import torch_tpu

    from . import error_checks, form_checks, op_checks
    from .compare import MismatchError
    from .op_checks import DTYPES, SkipError

    torch_tpu._C._reset_fallback_counts()
    torch_tpu._C._reset_decomposed_ops()
    suite, name, most = task["suite"], task["name"], task.get("samples", 3)
    dtype = DTYPES[task["dtype"]]
    start = time.perf_counter()
    result: dict[str, Any] = {}
    try:
        if suite == "op":
            result["samples"] = op_checks.check_values_and_gradients(name, dtype, most)
        elif suite == "forms":
            result["samples"] = form_checks.check_forms(name, dtype, most)
        elif suite == "transforms":
            result["samples"] = form_checks.check_transforms(name, dtype, most)
        elif suite == "compile":
            from . import compile_checks

            dynamic = task.get("mode") == "dynamic"
            result.update(compile_checks.check_compiled(name, dtype, most, dynamic))
        elif suite == "errors":
            result.update(error_checks.check_errors(name))
        else:
            from . import other_checks

            if suite == "module":
                training = task["mode"] == "train"
                result["samples"] = other_checks.check_module(name, dtype, training)
            else:
                result["samples"] = other_checks.check_optimizer(name, dtype)
        result["status"] = "wrong" if "detail" in result else "right"
    except SkipError as reason:
        result.update(status="skipped", detail=str(reason))
    except MismatchError as error:
        result.update(status="wrong", detail=str(error)[:500])
    except Exception as error:
        text = " ".join(str(error).split("\nException raised from")[0].split())
        result.update(status="raises", detail=f"{type(error).__name__}: {text[:400]}")
    result["fallback"] = sorted(torch_tpu.coverage())
    result["decomposed"] = sorted(torch_tpu._C._decomposed_ops())
    result["seconds"] = round(time.perf_counter() - start, 3)
    torch._dynamo.reset() if "torch._dynamo" in sys.modules else None
    if task.get("forget", True):
        torch_tpu.clear_programs()
    return result


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(run)
