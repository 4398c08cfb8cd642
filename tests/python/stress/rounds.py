"""Draws a round from the seed and its number, runs it, and compares all that is left.

A round begins with nothing but compiled programs, so it can be run again on its own."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import torch_tpu

from . import compiled, own, shared
from .faults import FAULTS
from .history import History
from .shared import Place, Shared, make_shared
from .worker import Worker, check_equal

MODES = ("strict", "fused", "debug")
WHEN = ("first", "second", "second", "never")

Act = Callable[[Worker, Place], None]


def alone(action: Callable[[Worker], None]) -> Act:
    return lambda worker, _place: action(worker)


# name: (how often, what)
ACTS: dict[str, tuple[int, Act]] = {
    "pure": (6, alone(own.pure)),
    "in_place": (6, alone(own.in_place)),
    "view": (3, alone(own.view)),
    "read": (4, alone(own.read)),
    "compare": (2, alone(own.compare)),
    "transfer": (2, alone(own.to_host_and_back)),
    "compiled": (3, alone(own.call_compiled)),
    "gradient": (1, alone(own.gradient)),
    "train": (1, alone(own.train)),
    "sizes": (1, alone(own.sizes)),
    "loop": (1, alone(own.loop)),
    "forget": (1, alone(own.forget)),
    "parts": (6, shared.write_part),
    "keep": (4, shared.keep),
    "read_kept": (5, shared.read_kept),
    "each_other": (3, shared.each_other),
    "count": (2, shared.count),
    "hand_over": (2, shared.hand_over),
    "take_over": (2, shared.take_over),
    **{name: (1, alone(fault)) for name, fault in FAULTS.items()},
}


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    seed: int = 0
    mode: str = "mixed"
    threads: int = 0  # 0: drawn for each round
    devices: int = 3
    acts: tuple[str, ...] = tuple(ACTS)


class RoundFailedError(Exception):
    """A worker failed; the cause is chained."""


class Round:
    """One round. `run` returns, or raises RoundFailedError."""

    def __init__(
        self,
        options: Options,
        number: int,
        history: History,
        functions: dict[str, Callable],
        until: float,
    ) -> None:
        pick = random.Random(f"{options.seed}/{number}")
        self.options, self.history, self.functions = options, history, functions
        self.threads = options.threads or pick.randint(2, 8)
        mixed = options.mode == "mixed"
        self.mode = pick.choice(MODES) if mixed else options.mode
        self.when = pick.choice(WHEN)
        self.switches = mixed and pick.random() < 0.5
        self.limits = pick.choice(((64, 1024), (64, 1024), (4, 32), (1, 2)))
        self.acts_each = pick.randint(8, 30)
        self.pick = pick
        self.seeds = [pick.random() for _ in range(self.threads + 1)]
        self.stop = threading.Event()
        self.errors: list[tuple[str, BaseException]] = []
        self.until = until
        self.number = number

    def __str__(self) -> str:
        switching = ", modes switched while threads run" if self.switches else ""
        return (
            f"round {self.number}: {self.threads} threads, {self.mode}, compiled {self.when}, "
            f"{self.limits[0]} to {self.limits[1]} ops{switching}"
        )

    def run(self) -> None:
        self.history.start(str(self))
        limits = torch_tpu.fused.limits()
        torch_tpu.fused.set_limits(*self.limits)
        try:
            with torch_tpu.mode(self.mode), torch_tpu.fused.compile_when(self.when):
                self._run()
        finally:
            torch_tpu.fused.set_limits(*limits)

    def _run(self) -> None:
        common = make_shared(self.pick, self.threads, self.options.devices)
        workers = [self._worker(n, common) for n in range(self.threads)]
        threads = [
            threading.Thread(
                target=self._work, args=(worker, Place(common, n)), name=worker.name, daemon=True
            )
            for n, worker in enumerate(workers)
        ]
        conductor = threading.Thread(target=self._conduct, name="switch", daemon=True)
        done = threading.Event()
        self.done = done
        if self.switches:
            conductor.start()
        for thread in threads:
            thread.start()
        # The watchdog ends a run that hangs.
        self.history.rest("main")
        for thread in threads:
            thread.join()
        done.set()
        if self.switches:
            conductor.join()
        if not self.errors:
            self._guarded("main", lambda: self._compare(workers, common))
        self.history.rest("main")
        if self.errors:
            who, error = self.errors[0]
            raise RoundFailedError(f"{who}: {type(error).__name__}: {error}") from error

    def _worker(self, n: int, common: Shared) -> Worker:
        pick = random.Random(self.seeds[n])
        worker = Worker(f"w{n}", pick, self.history, self.options.devices, self.stop)
        worker.device |= {**self.functions, **common.device}
        worker.cpu |= {**compiled.PLAIN, **common.cpu}
        return worker

    def _guarded(self, who: str, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append((who, error))
            self.history.say(who, f"# failed: {type(error).__name__}: {error}")
            self.stop.set()
        finally:
            self.history.rest(who)

    def _work(self, worker: Worker, place: Place) -> None:
        names = [name for name in ACTS if name in self.options.acts]
        weights = [ACTS[name][0] for name in names]

        def work() -> None:
            for _ in range(self.acts_each):
                if self.stop.is_set() or time.monotonic() > self.until:
                    return
                (name,) = worker.pick.choices(names, weights)
                worker.say(f"# {name}")
                ACTS[name][1](worker, place)
                own.tidy(worker)

        self._guarded(worker.name, work)

    def _conduct(self) -> None:
        """Changes what belongs to the process while the workers run."""
        pick = random.Random(self.seeds[-1])

        def change() -> None:
            while not self.done.wait(pick.choice((0.001, 0.01, 0.1))):
                line = pick.choice(
                    (
                        *(f"torch_tpu.set_mode({mode!r})" for mode in MODES),
                        *(f"torch_tpu.fused.compile_when({when!r})" for when in WHEN),
                        "torch_tpu.fused.set_limits(1, 2)",
                        "torch_tpu.fused.set_limits(4, 64)",
                        "torch_tpu.fused.flush()",
                        "torch_tpu.stats()",
                        "torch_tpu.fused.programs()",
                        "torch.tpu.memory_allocated()",
                        "torch.tpu.current_stream().query()",
                        "gc.collect()",
                    )
                )
                self.history.say("switch", line)
                exec(line, {"torch": torch, "torch_tpu": torch_tpu, "gc": gc})
                self.history.rest("switch")

        self._guarded("switch", change)

    def _compare(self, workers: list[Worker], common: Shared) -> None:
        """All that is left, on a thread that made none of it."""
        for name, right in common.cpu.items():
            self.history.say("main", f"{name}.cpu()  # compared")
            check_equal(name, common.device[name], right)
        for worker in workers:
            for name in worker.own():
                self.history.say("main", f"{name}.cpu()  # of {worker.name}, compared")
                check_equal(f"{name} of {worker.name}", worker.device[name], worker.cpu[name])
        while not common.box.empty():
            device, cpu = common.box.get()
            self.history.say("main", "# what nobody took over, compared")
            check_equal("a tensor that nobody took over", device, cpu)
