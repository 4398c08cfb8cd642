"""Runs the script on each device, one after the other, and makes figures of the answers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_tpu._compare.prices import Prices

DEVICE_VARIABLE = "TORCH_TPU_COMPARE_DEVICE"
PERCENTILES = (50, 90, 99)


@dataclass
class Settings:
    """What is asked for."""

    script: Path
    arguments: list[str]
    steps: int | None = None
    warmup: int = 5
    sync: bool = True
    timeout: float = 3600.0
    tokens: int = 0  # of a step, where the script does not say
    prices: Prices | None = None

    @property
    def takes_device(self) -> bool:
        """The script is told its device by an argument."""
        return any("{device}" in word for word in self.arguments)


@dataclass
class Row:
    """One device. Times are in seconds; None is what could not be measured."""

    device: str
    failure: str = ""
    device_name: str = ""
    torch: str = ""
    source: str = ""
    steps: int = 0
    first_step: float | None = None
    steps_per_second: float | None = None
    latencies: list[float] = field(default_factory=list)
    percentiles: dict[str, float] = field(default_factory=dict)
    host_peak_bytes: int | None = None
    device_peak_bytes: int | None = None
    joules_per_step: dict[str, float] = field(default_factory=dict)
    tokens_per_second: float | None = None
    cost_per_million_tokens: float | None = None
    currency: str = ""


def measure(device: str, settings: Settings, quiet: bool) -> Row:
    """Runs the script once; whatever goes wrong is in the row."""
    with tempfile.TemporaryDirectory(prefix="torch_tpu_compare_") as folder:
        output, given = Path(folder) / "answer.json", Path(folder) / "settings.json"
        wanted = {
            "device": device,
            "as_argument": settings.takes_device,
            "steps": settings.steps,
            "warmup": settings.warmup,
            "sync": settings.sync,
            "output": str(output),
        }
        given.write_text(json.dumps(wanted), encoding="utf-8")
        code = _run(device, given, settings, quiet)
        try:
            answer = json.loads(output.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return Row(device, _how_it_ended(code, settings))
    return figures(device, answer, settings)


def _run(device: str, given: Path, settings: Settings, quiet: bool) -> int | None:
    """The exit code, or None when its time ran out. Nothing it started stays."""
    kind = device.partition(":")[0]
    env = {**os.environ, DEVICE_VARIABLE: device}
    if kind != "tpu":  # one accelerator per process: ours must not stand in another's way
        env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    package = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), package]))
    arguments = [word.replace("{device}", device) for word in settings.arguments]
    runner = Path(__file__).with_name("runner.py")
    child = subprocess.Popen(
        [sys.executable, str(runner), str(given), str(settings.script), *arguments],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if not quiet else subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return child.wait(settings.timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _how_it_ended(code: int | None, settings: Settings) -> str:
    if code is None:
        return f"not done within {settings.timeout:g} s (--timeout)"
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code} and no answer"


def figures(device: str, answer: dict[str, Any], settings: Settings) -> Row:
    """The row of one answer."""
    row = Row(device)
    if "unavailable" in answer:
        row.failure = f"not available: {answer['unavailable']}"
        return row
    row.failure = answer.get("failed", "")
    if "times" not in answer:
        return row
    for name in ("device_name", "torch", "source", "host_peak_bytes", "device_peak_bytes"):
        setattr(row, name, answer[name])
    times: list[float] = answer["times"]
    kind = device.partition(":")[0]
    if answer["devices"] and kind not in answer["devices"]:
        used = ", ".join(answer["devices"])
        row.failure = row.failure or (
            f"the script ran on {used}, not on {kind}: let it take its device from an argument "
            f"({{device}}) or from ${DEVICE_VARIABLE}"
        )
        return row
    if times:
        row.first_step = times[0]
    # Without a warm-up the first step has nothing before it but the start of the script.
    kept = times[max(0, settings.warmup - 1) :]
    row.latencies = [b - a for a, b in itertools.pairwise(kept)]
    if not row.latencies:
        row.failure = row.failure or (
            f"{len(times)} steps seen, and {max(1, settings.warmup)} are warm-up: use --warmup, or "
            "mark steps with torch_tpu.compare.step()"
        )
        return row
    row.steps = len(row.latencies)
    total = sum(row.latencies)
    row.steps_per_second = row.steps / total
    row.percentiles = {f"p{p}": percentile(row.latencies, p) for p in PERCENTILES}
    row.joules_per_step = {name: value / row.steps for name, value in answer["joules"].items()}
    _cost(row, answer, settings, total)
    return row


def _cost(row: Row, answer: dict[str, Any], settings: Settings, total: float) -> None:
    tokens = sum(answer["tokens"][-row.steps :]) or settings.tokens * row.steps
    if not tokens:
        return
    row.tokens_per_second = tokens / total
    if settings.prices is None:
        return
    price = settings.prices.of(row.device.partition(":")[0], row.device_name)
    if price is not None:
        row.currency = settings.prices.currency
        row.cost_per_million_tokens = price / 3600 * 1e6 / row.tokens_per_second


def percentile(values: list[float], percent: float) -> float:
    """By linear interpolation, as numpy does.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
    2.5
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
