"""Ahead of time for TPU: compiles a model for a TPU that is not there, with the TPU's own compiler,
and says what would become of it: does it fit, how fast is it, what is wasted, and where.

    >>> import torch, torch_tpu
    >>> model = torch.nn.Linear(1024, 1024, device="meta", dtype=torch.bfloat16)
    >>> x = torch.empty(1024, 1024, device="meta", dtype=torch.bfloat16)
    >>> report = torch_tpu.aot.compile(model, (x,), topology="v5e:2x2")  # doctest: +SKIP
    >>> print(report)  # doctest: +SKIP

See docs/aot.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from torch_tpu.aot.compiler import (
    DEFAULT_TIMEOUT,
    CompilerCrashError,
    CompilerTimeoutError,
    DoesNotFitError,
    compile_text,
    require_libtpu,
    require_no_options,
)
from torch_tpu.aot.exported import from_export
from torch_tpu.aot.pack import write_pack
from torch_tpu.aot.report import Report, make_report, too_large
from torch_tpu.aot.shard import Shard
from torch_tpu.aot.step import TrainStep
from torch_tpu.aot.topologies import AotError, known_topologies, parse_topology
from torch_tpu.aot.trace import Argument, Traced, trace

__all__ = [
    "AotError",
    "Argument",
    "CompilerCrashError",
    "CompilerTimeoutError",
    "Report",
    "Shard",
    "Traced",
    "TrainStep",
    "compile",
    "compile_traced",
    "from_export",
    "known_topologies",
    "parse_topology",
    "trace",
    "write_pack",
]


def compile(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    topology: str = "v5e:2x2",
    *,
    shard: Shard | str | None = None,
    scan: str | None = None,
    state: Iterable[torch.nn.Module | torch.optim.Optimizer] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    progress: bool | None = None,
    serialize: bool = False,
    mxu: bool = True,
) -> Report:
    """Compiles a module, a function or a `TrainStep` for a TPU topology and reports on it.

    Weights and arguments may be on the device "meta": nothing has memory here. `shard` spreads the
    program over the topology's devices: "fsdp" (parameters and inputs divided), "data" (inputs
    only), or a `Shard`. `scan` names a ModuleList of equal layers that becomes one loop. `state`
    are modules and optimizers that a function uses; by default those it refers to. `mxu=False`
    leaves out how well the matrix units are used, and compiles large programs twice as fast.

    A program that does not fit is no error: the report says so. Bad input, options that a block of
    `torch_tpu.compiler` has set, and a compiler that refuses or dies, raise `AotError`.
    """
    where = parse_topology(topology)
    require_no_options()
    require_libtpu_or_site()
    started = time.perf_counter()
    made = trace(
        function,
        args,
        kwargs,
        state=state,
        shard=make_shard(shard, where.devices),
        scan=scan,
    )
    seconds = time.perf_counter() - started
    return compile_traced(
        made,
        topology,
        trace_seconds=seconds,
        timeout=timeout,
        progress=progress,
        serialize=serialize,
        mxu=mxu,
    )


def compile_traced(
    traced: Traced,
    topology: str,
    *,
    trace_seconds: float = 0.0,
    timeout: float = DEFAULT_TIMEOUT,
    progress: bool | None = None,
    serialize: bool = False,
    mxu: bool = True,
) -> Report:
    """Compiles what `trace` made."""
    where = parse_topology(topology)
    if traced.devices not in (1, where.devices):
        raise AotError(
            f"the program is spread over {traced.devices} devices; {topology} has {where.devices}."
        )
    try:
        compiled = compile_text(
            traced.text,
            where,
            traced.devices,
            timeout=timeout,
            serialize=serialize,
            profile=mxu,
            progress=progress,
        )
    except DoesNotFitError as error:
        seconds = (trace_seconds, error.seconds)
        return too_large(traced, where, error.text, seconds, error.live, error.optimized)
    return make_report(traced, where, compiled, trace_seconds)


def make_shard(shard: Shard | str | None, devices: int) -> Shard | None:
    """Of "fsdp", "data" or None; `AotError` for any other name."""
    if isinstance(shard, Shard) or shard is None:
        if shard is not None and shard.devices != devices:
            raise AotError(f"a shard over {shard.devices} of {devices} devices. Use all of them.")
        return shard
    if shard not in ("fsdp", "data"):
        raise AotError(f"there is no shard '{shard}'. Known ones: fsdp, data.")
    return Shard(devices, data_parallel=shard == "data")


def require_libtpu_or_site() -> None:
    """Before any work is done."""
    import os

    require_libtpu([s for s in os.environ.get("TORCH_TPU_TEST_SITE_PACKAGES", "").split(":") if s])
