"""Runs a script on one device and writes what was measured. Started by its path, not as a part of
the package, which would register a device that the script may not want.

Usage: runner.py SETTINGS.json SCRIPT [arguments...]
"""

from __future__ import annotations

import importlib.util
import json
import resource
import runpy
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


class _EnoughError(BaseException):
    """All steps asked for are done. No Exception: scripts catch those."""


class Recorder:
    """Times of steps, by who marked them. Which marks count is known at the end: the script's own,
    else steps of optimizers, else calls of the outermost module."""

    def __init__(self, settings: dict[str, Any], torch: ModuleType, meter: Any) -> None:
        self.kind: str = settings["device"].partition(":")[0]
        self.warmup: int = settings["warmup"]
        self.steps: int | None = settings["steps"]
        self.sync: bool = settings["sync"]
        self.torch = torch
        self.meter = meter
        self.marks: dict[str, list[float]] = {"marked": [], "optimizer": [], "module": []}
        self.tokens: list[int] = []
        self.devices: set[str] = set()
        self.depth = 0
        self.start = time.perf_counter()
        self.joules: dict[str, float] = {}
        self.mark = -1.0  # when the energy counters began

    def install(self) -> None:
        """Hooks into torch, which a script does not notice."""
        from torch.nn.modules import module
        from torch.optim import optimizer

        optimizer.register_optimizer_step_post_hook(self._optimizer)
        module.register_module_forward_pre_hook(self._enter)
        module.register_module_forward_hook(self._leave, always_call=True)

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.kind == "cuda":
            self.torch.cuda.synchronize()
        elif self.kind == "tpu":
            self.torch.tpu.synchronize()

    def marked(self, tokens: int = 0) -> None:
        """Called by torch_tpu.compare.step()."""
        self.tokens.append(tokens)
        self._step("marked")

    def _optimizer(self, optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups[:1]:
            self.devices.update(p.device.type for p in group["params"][:1])
        self._step("optimizer")

    def _enter(self, module: Any, args: Any) -> None:
        self.depth += 1

    def _leave(self, module: Any, args: Any, result: Any) -> None:
        self.depth = max(0, self.depth - 1)
        if self.depth == 0:
            if isinstance(result, self.torch.Tensor):
                self.devices.add(result.device.type)
            self._step("module")

    def source(self) -> str:
        """Whose marks count by what is known now."""
        return next((name for name, times in self.marks.items() if times), "module")

    def _step(self, name: str) -> None:
        times = self.marks[name]
        if self.sync and self.source() in (name, "module"):
            self.synchronize()
        times.append(time.perf_counter())
        if self.source() != name:
            return
        if len(times) == max(1, self.warmup):
            self.meter.start()
            self.mark = times[-1]
        if self.steps is not None and self._can_end(name) and len(times) >= self.wanted():
            raise _EnoughError

    def wanted(self) -> int:
        """Steps in all, warm-up included."""
        return max(1, self.warmup) + (self.steps or 0)

    def _can_end(self, name: str) -> bool:
        """A forward in training is no step: its optimizer comes once the loss is there."""
        return name != "module" or not self.torch.is_grad_enabled()

    def finish(self) -> dict[str, Any]:
        """What the report needs."""
        self.synchronize()
        self.joules = self.meter.joules()
        end = time.perf_counter()
        source = self.source()
        times = [t - self.start for t in self.marks[source]]
        if times and not self.sync:
            times[-1] = end - self.start
        return {
            "source": source,
            "times": times,
            "tokens": self.tokens,
            "devices": sorted(self.devices),
            "joules": self.joules,
            "joules_seconds": end - self.mark if self.mark >= 0 else 0.0,
            "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "device_peak_bytes": self._peak(),
            "device_name": self._name(),
            "torch": self.torch.__version__,
        }

    def _peak(self) -> int | None:
        if self.kind == "cuda":
            return int(self.torch.cuda.max_memory_allocated())
        if self.kind == "tpu":
            return int(self.torch.tpu.max_memory_allocated())
        return None

    def _name(self) -> str:
        if self.kind == "cuda":
            return str(self.torch.cuda.get_device_name())
        if self.kind == "tpu":
            return f"PJRT {self.torch.tpu.get_device_name()}"
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        return "cpu"


def _by_path(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Exit code 0 when the script ran to its end, or to the steps asked for."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    script = sys.argv[2]
    answer: dict[str, Any] = {}
    output = Path(settings["output"])
    try:
        import torch

        if settings["device"].startswith("tpu"):
            import torch_tpu
        # The device works; its start is no part of the script.
        torch.ones(1, device=settings["device"]) + 1
        if not settings["as_argument"]:
            torch.set_default_device(settings["device"])
    except Exception as error:
        answer["unavailable"] = f"{error}".strip().partition("\n")[0] or type(error).__name__
        output.write_text(json.dumps(answer), encoding="utf-8")
        return 1
    recorder = Recorder(settings, torch, _by_path("energy").Meter())
    try:
        import torch_tpu.compare  # does not register the device where it is another one's turn

        torch_tpu.compare._listener = recorder.marked
    except ImportError:  # a torch for which there is no torch_tpu: the script has no marks then
        pass
    recorder.install()
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except _EnoughError:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            answer["failed"] = f"it ended with {end.code}"
    except BaseException as error:
        traceback.print_exc()
        answer["failed"] = f"{type(error).__name__}: {error}".partition("\n")[0]
        if "device" in answer["failed"] and not settings["as_argument"]:
            answer["failed"] += (
                ". Where the script takes its device as an argument, give it there: "
                "compare SCRIPT -- --device {device}"
            )
    try:
        answer.update(recorder.finish())
    except Exception as error:
        answer.setdefault("failed", f"{type(error).__name__}: {error}".partition("\n")[0])
    output.write_text(json.dumps(answer), encoding="utf-8")
    return 1 if "failed" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
