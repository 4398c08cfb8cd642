"""PyTorch's test helpers (torch.testing._internal) know accelerators by name: CUDA, XPU, HPU. Here
each module of them learns of this device, right after its import, before a test file reads it.

Imports nothing of torch before that: it runs at the start of every process of a test."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import multiprocessing
import os
import sys
import unittest
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from types import ModuleType
from typing import Any

DEVICE = "tpu"  # the device type, and the name of its c10d backend
INTERNAL = "torch.testing._internal"


def install() -> None:
    """Waits for the helpers to be imported."""
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the helpers as the others would, and teaches each after it has run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        teach = TEACHERS.get(name)
        if teach is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        original = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            teach(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _device_count() -> int:
    import torch

    return torch.accelerator.device_count()


def _teach_common_device_type(module: Any) -> None:
    """A class for CUDA and another device is made for this one too; one for CUDA alone is not."""
    known = module.filter_desired_device_types

    def filter_desired_device_types(
        bases: Any, except_for: Any = None, only_for: Any = None
    ) -> Any:
        if only_for and not isinstance(only_for, str) and "cuda" in only_for and len(only_for) > 1:
            only_for = [*only_for, DEVICE]
        return known(bases, except_for, only_for)

    module.filter_desired_device_types = filter_desired_device_types


def _teach_inductor_utils(module: Any) -> None:
    """What is asked of "the GPU" is asked of this device; Triton remains absent."""
    module.GPU_TYPE = DEVICE
    module.HAS_GPU = module.RUN_GPU = True
    module.HAS_MULTIGPU = _device_count() > 1
    module.requires_gpu = functools.partial(unittest.skipIf, False, "requires gpu")


def _teach_common_distributed(module: Any) -> None:
    module.ACCELERATOR_DIST_BACKENDS.append(DEVICE)
    module.DDP_RANK_DEVICES.append(DEVICE)
    module.HAS_ACCELERATOR = True

    def at_least(count: int) -> bool:
        return _device_count() >= count

    def skip_if_lt_x_gpu(count: int, *, allow_cpu: bool = False) -> Callable[[Any], Any]:
        def decorate(test: Any) -> Any:
            @functools.wraps(test)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if at_least(count):
                    return test(*args, **kwargs)
                skip = module.TEST_SKIPS[f"multi-gpu-{count}"]
                if not module._maybe_handle_skip_if_lt_x_gpu(args, skip.message):
                    sys.exit(skip.exit_code)
                return None

            return wrapper

        return decorate

    def skip_if_no_gpu(test: Any) -> Any:
        return skip_if_lt_x_gpu(int(os.environ.get("WORLD_SIZE", "1")))(test)

    known = module.requires_accelerator_dist_backend

    def requires_accelerator_dist_backend(backends: list[str] | None = None) -> Any:
        # A pair of names is a list of what there was when the test was written.
        if backends is None or DEVICE in backends or len(backends) > 1:
            return lambda test: test
        return known(backends)

    module.at_least_x_gpu = at_least
    module.skip_if_lt_x_gpu = skip_if_lt_x_gpu
    module.skip_if_no_gpu = skip_if_no_gpu
    module.requires_accelerator_dist_backend = requires_accelerator_dist_backend
    _teach_base(module)
    _quick_processes(module)
    _new_workers_after_a_failure(module)


def _teach_base(module: Any) -> None:
    """Which backend serves the device, and that a rank sits on the device of its number."""
    base = module.DistributedTestBase
    backend, create_pg = base.backend, base.create_pg

    def backend_of(self: Any, device: str) -> str:
        return DEVICE if DEVICE in device else backend(self, device)

    def create(self: Any, device: str, world_size: int | None = None) -> Any:
        import torch

        if DEVICE in device:
            torch.accelerator.set_device_index(self.rank)
        return create_pg(self, device, world_size)

    base.backend, base.create_pg = backend_of, create


class RankProcess(ForkServerProcess):
    """Forked from a process that has imported torch and used no device, instead of importing torch
    anew: a test of four ranks takes a second where it took eight. Has the variables of the process
    that starts it, as a spawned one would."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._variables = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._variables)
        super().run()


def _quick_processes(module: Any) -> None:
    multiprocessing.set_forkserver_preload(
        [
            "torch._dynamo",
            f"{INTERNAL}.common_fsdp",
            f"{INTERNAL}.distributed._tensor.common_dtensor",
        ]
    )

    def spawn(self: Any) -> None:
        self._start_processes(RankProcess)

    module.MultiProcessTestCase._spawn_processes = spawn


def _new_workers_after_a_failure(module: Any) -> None:
    """PyTorch's class skips all that follows a failure; here the next test gets new processes."""
    base = module.MultiProcContinuousTest
    set_up = base.setUp

    def set_up_anew(self: Any) -> None:
        cls = type(self)
        if cls.poison_pill:
            for process in cls.processes:
                process.kill()
                process.join()
            cls.poison_pill = cls._processes_spawned = False
        set_up(self)

    base.setUp = set_up_anew


def _teach_common_dtensor(module: Any) -> None:
    base = module.DTensorTestBase
    init_pg = base.init_pg

    def init(self: Any, eager_init: bool, backend: str | None = None) -> None:
        import torch

        if self.device_type == DEVICE:
            torch.accelerator.set_device_index(self.rank)
            backend = backend or f"cpu:gloo,{DEVICE}:{DEVICE}"
        init_pg(self, eager_init, backend)

    base.init_pg = init


def _teach_common_fsdp(module: Any) -> None:
    module.DEVICE_TYPE = module.DISTRIBUTED_BACKEND = DEVICE
    module.DEVICE_COUNT = _device_count()
    module.TEST_XPU = True  # "an accelerator that is not CUDA": a rank takes its device
    module.FSDPTestContinuous.world_size = module.DEVICE_COUNT


TEACHERS: dict[str, Callable[[Any], None]] = {
    f"{INTERNAL}.common_device_type": _teach_common_device_type,
    f"{INTERNAL}.inductor_utils": _teach_inductor_utils,
    f"{INTERNAL}.common_distributed": _teach_common_distributed,
    f"{INTERNAL}.distributed._tensor.common_dtensor": _teach_common_dtensor,
    f"{INTERNAL}.common_fsdp": _teach_common_fsdp,
}
