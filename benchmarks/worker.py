"""One contestant, kept warm: takes commands as JSON lines on stdin and answers on stdout.

Commands: {"do": "start"}, {"do": "prepare", "work": NAME, "warm_up": true}, {"do": "time",
"seconds": S, "calls": N} and {"do": "stats"}; the end of the input ends it. An answer holds "error"
where a command failed. Meant for run.py. By hand:
echo '{"do": "start"}' | python worker.py torch cpu -
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Work = Callable[[], float]
Makers = dict[str, Callable[[], Work]]
WARM_UP_CALLS = 3
WARM_UP_SECONDS = 5.0


def torch_makers(device: str) -> Makers:
    """The PyTorch workloads on a device."""
    import moving_work
    import shapes_work
    import torch_work
    import varlen_work

    def bound(make: Callable[[str], Work]) -> Callable[[], Work]:
        return lambda: make(device)

    works = {**torch_work.WORK, **shapes_work.WORK, **varlen_work.WORK, **moving_work.WORK}
    return {name: bound(make) for name, make in works.items()}


class Contestant:
    """What the commands act on. `kind` is torch, ours, peer or jax."""

    def __init__(self, kind: str, device: str, mode: str) -> None:
        self.kind, self.device, self.mode = kind, device, mode
        self.makers: Makers = {}
        self.work: Work | None = None

    def start(self) -> dict[str, Any]:
        """Imports the framework; says what it is and which workloads it has."""
        begin = time.perf_counter()
        if self.kind == "jax":
            import jax
            import jax_work

            self.makers = jax_work.JITTED if self.mode == "jit" else jax_work.OP_BY_OP
            device = jax.devices()[0]
            about = f"jax {jax.__version__} on {device.platform} ({device.device_kind})"
        else:
            about = self._start_torch()
            self.makers = torch_makers(self.device)
        return {
            "about": about,
            "works": list(self.makers),
            "import_seconds": time.perf_counter() - begin,
        }

    def _start_torch(self) -> str:
        import torch
        import torch_work

        if self.mode == "compile":
            torch_work.COMPILER = "tpu" if self.kind == "ours" else "inductor"
        if self.kind == "ours":
            import torch_tpu

            mode = self.mode if self.mode == "compile" else torch_tpu.get_mode()
            return f"torchtpu {torch_tpu.__version__} {mode}"
        if self.kind == "peer":
            from peers.pypi_torch_tpu import start

            torch_work.OWN_ATTENTION = False  # its attention is a kernel that only a TPU has
            return f"torch-tpu {start(self.mode)} {self.mode}"
        if self.device == "cuda":
            return f"torch {torch.__version__} on {torch.cuda.get_device_name()}"
        return f"torch {torch.__version__} on the CPU, {torch.get_num_threads()} threads"

    def prepare(self, name: str, warm_up: bool) -> dict[str, Any]:
        """Builds the workload and warms it up; the first call's time is the cold one.

        Fused programs may be compiled in the background, so warming up waits for them after each
        call, and lasts until three calls in a row took about the same, within a limit.
        """
        begin = time.perf_counter()
        self.work = self.makers[name]()
        built = time.perf_counter()
        values = [self.work()]
        first = time.perf_counter() - built
        times: list[float] = []
        compiles = [self._settled_compiles()]
        stop = time.perf_counter() + WARM_UP_SECONDS
        while warm_up and (len(times) < WARM_UP_CALLS or time.perf_counter() < stop):
            called = time.perf_counter()
            values.append(self.work())
            times.append(time.perf_counter() - called)
            compiles.append(self._settled_compiles())
            recent = times[-WARM_UP_CALLS:]
            if len(recent) == WARM_UP_CALLS and max(recent) < 1.2 * min(recent):
                break
        self._reset_peak()
        per_call = [b - a for a, b in itertools.pairwise([0, *compiles])]
        return {
            "build_seconds": built - begin,
            "first_seconds": first,
            "second_seconds": times[0] if times else None,
            "compiles": per_call if self.kind == "ours" else [],
            "values": values[: 1 + WARM_UP_CALLS],
        }

    def _settled_compiles(self) -> int:
        """Programs compiled so far, none of them still under way; 0 for the others."""
        if self.kind != "ours":
            return 0
        import torch_tpu

        fused = getattr(torch_tpu, "fused", None)
        if hasattr(fused, "wait"):
            fused.wait()
        return int(torch_tpu.stats()["compiles"])

    def _reset_peak(self) -> None:
        if self.kind == "ours":
            import torch_tpu

            torch_tpu.tpu.reset_peak_memory_stats()

    def time(self, seconds: float, calls: int) -> dict[str, Any]:
        """Times single calls: at least `calls`, and until `seconds` have passed.

        Also gives the CPU time of a call over all threads, which a busy machine hardly changes.
        """
        if self.work is None:
            raise RuntimeError("nothing is prepared")
        gc.collect()
        times: list[float] = []
        cpu = time.process_time()
        stop = time.perf_counter() + seconds
        while len(times) < calls or time.perf_counter() < stop:
            begin = time.perf_counter()
            self.work()
            times.append(time.perf_counter() - begin)
        return {"times": times, "cpu": (time.process_time() - cpu) / len(times)}

    def stats(self) -> dict[str, Any]:
        """What our backend counted; nothing for the others."""
        if self.kind != "ours":
            return {}
        import torch_tpu

        fallbacks = {op: use.calls for op, use in torch_tpu.coverage().items()}
        peak = torch_tpu.tpu.max_memory_reserved()
        ready = [p for p in torch_tpu.fused.programs() if p["state"] == "ready"]
        bounded = sum(p["bound"] is not None for p in ready)
        return {
            "programs": torch_tpu.stats(),
            "fused": {"ready": len(ready), "bounded": bounded},
            "fallbacks": fallbacks,
            "peak_bytes": peak,
        }

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carries out one command."""
        match command["do"]:
            case "start":
                return self.start()
            case "prepare":
                return self.prepare(command["work"], command.get("warm_up", True))
            case "time":
                return self.time(command["seconds"], command["calls"])
            case "stats":
                return self.stats()
        raise ValueError(f"unknown command {command['do']!r}")


def main() -> None:
    """Answers until the input ends."""
    kind, device, mode = sys.argv[1:4]
    # Answers go to a private copy of stdout; whatever a library prints goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    contestant = Contestant(kind, device, mode)
    for line in sys.stdin:
        try:
            result = contestant.answer(json.loads(line))
        except Exception as error:
            import traceback

            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(result) + "\n")
    # Not sys.exit: tearing a runtime down is no part of any measurement, and may fail.
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
