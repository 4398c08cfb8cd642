"""Checks that load the native module and start the device: in a child process, since that may
crash, hang, or pick up what is broken."""

from __future__ import annotations

import difflib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from torch_tpu._doctor.finding import Finding, Places

_MARK = "torch-tpu-doctor:"
# The child sees the packages that we see.
_START = "import json, sys; sys.path[:] = {path!r}\n"
_ENVIRONMENT = """
from torch_tpu import _C
out = {"problems": _C._env_problems(), "names": [row["name"] for row in _C._env_table()]}
print({mark!r} + json.dumps(out))
"""
_SELF_TEST = """
import time, warnings
warnings.simplefilter("ignore")
started = time.perf_counter()
import torch, torch_tpu
from torch_tpu import _C
imported = time.perf_counter()
about = _C._device_properties(0)
client = time.perf_counter()
total = (torch.arange(4.0, device="tpu") * 2).sum().item()
done = time.perf_counter()
assert total == 12.0, f"2 * (0 + 1 + 2 + 3) gave {{total}}"
names = ("name", "platform", "platform_version", "plugin_path", "api_version", "stablehlo_version")
out = {{name: about[name] for name in names}}
out.update(devices=torch.tpu.device_count(), import_seconds=imported - started,
           client_seconds=client - imported, op_seconds=done - client)
print({mark!r} + json.dumps(out))
"""
# What else begins like our variables: tests and benchmarks read their own.
_FOREIGN = ("TORCH_TPU_TEST_", "TORCH_TPU_BENCH_")


class _NoAnswerError(Exception):
    """The child did not answer; the text says how it ended."""


def _ask(code: str, places: Places, **extra: str) -> dict[str, Any]:
    env = {**places.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **extra}
    # A group of its own, so that nothing it started stays.
    child = subprocess.Popen(
        [sys.executable, "-c", _START.format(path=[p for p in sys.path if p]) + code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    try:
        out, errors = child.communicate(timeout=places.timeout)
    except subprocess.TimeoutExpired:
        raise _NoAnswerError(f"it gave no answer within {places.timeout:.0f} s") from None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    for line in out.splitlines():
        if line.startswith(_MARK):
            return dict(json.loads(line.removeprefix(_MARK)))
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        raise _NoAnswerError(f"it was ended by {name}" + (f": {lines[-1]}" if lines else ""))
    raise _NoAnswerError(lines[-1] if lines else f"it ended with exit code {child.returncode}")


def environment(places: Places) -> Iterator[Finding]:
    """The TORCH_TPU_* variables: known names, allowed values."""
    ours = {name: value for name, value in places.environ.items() if name.startswith("TORCH_TPU_")}
    try:
        answer = _ask("import torch\n" + _ENVIRONMENT.replace("{mark!r}", repr(_MARK)), places)
    except _NoAnswerError as failure:
        message = f"not checked, as the native module does not load: {failure}"
        yield Finding("environment", "warning", message, "see the other findings")
        return
    bad = 0
    for text in answer["problems"]:
        bad += 1
        name = text[1:].partition("]")[0]
        fix = f"unset {name}, or set it to a value that docs/environment.md allows"
        yield Finding("environment", "problem", text, fix)
    for name in sorted(set(ours) - set(answer["names"])):
        if name.startswith(_FOREIGN):
            continue
        bad += 1
        near = difflib.get_close_matches(name, answer["names"], n=1)
        fix = f"did you mean {near[0]}?" if near else f"unset {name}"
        yield Finding("environment", "warning", f"there is no variable {name}", fix)
    if not bad:
        text = ", ".join(f"{name}={value}" for name, value in sorted(ours.items()))
        yield Finding("environment", "ok", text or "nothing is set")


def self_test(places: Places) -> Iterator[Finding]:
    """One op: import, client, compile, run, read back."""
    try:
        answer = _ask(_SELF_TEST.format(mark=_MARK), places)
    except _NoAnswerError as failure:
        fix = (
            "put the findings above right first; then TORCH_TPU_PLUGIN_LOG=on shows the plugin's "
            "own log, and TORCH_TPU_CACHE_DIR=off leaves programs on disk out of it"
        )
        yield Finding("self test", "problem", f"one op on the device failed: {failure}", fix)
        return
    seconds = {name: answer[f"{name}_seconds"] for name in ("import", "client", "op")}
    times = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    message = f"{answer['devices']} device(s), {answer['name']} ({answer['platform']}); {times}"
    yield Finding("self test", "ok", message, "", answer)
