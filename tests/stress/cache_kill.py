"""Fills one folder of programs from several processes and kills one of them at a random moment,
again and again; then looks whether any entry is damaged and any result wrong.

    python tests/stress/cache_kill.py --times 50
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Sums of small integers: exact in any order, so whether single ops, a program of this size or one
# of sizes up to a bound ran (which one is ready depends on the moment) makes no difference at all.
FUNCTIONS = "(torch.square, torch.neg, lambda v: v + v, lambda v: v.sum(), torch.relu)"
RIGHT = [
    float(sum(f(v) for v in range(n)))
    for n in range(1, 25)
    for f in (lambda v: v * v, lambda v: -v, lambda v: v + v, lambda v: v, lambda v: v)
]
FILL = f"""
import json, torch, torch_tpu
FUNCTIONS = {FUNCTIONS}
x = torch.arange(24.0).to("tpu")
print("ready", flush=True)
values = []
for n in range(1, 25):
    for f in FUNCTIONS:
        values.append(f(x[:n]).sum().item())
print(json.dumps({{"values": values, "stats": torch_tpu.stats()}}), flush=True)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    """One process that fills the folder."""
    env = {**os.environ, "TORCH_TPU_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", FILL],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict:
    """Its values and counts."""
    out, errors = process.communicate(timeout=600)
    if process.returncode != 0:
        raise SystemExit(f"a process that nobody killed failed:\n{errors}")
    return json.loads(out.splitlines()[-1])


def main() -> int:
    """0 when nothing was ever damaged or wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50, help="kills at work (default: 50)")
    parser.add_argument("--processes", type=int, default=4, help="at a time (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    killed = damaged = wrong = left = 0
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "cache"
        for round_ in itertools.count():
            if killed == args.times:  # who had finished before the kill does not count
                break
            if round_ % 2 == 0:  # an empty folder again, so that there is something to write
                folder = Path(top) / f"cache{round_}"
            processes = [start(folder) for _ in range(args.processes)]
            victim = processes.pop(rng.randrange(len(processes)))
            assert victim.stdout is not None
            victim.stdout.readline()
            time.sleep(rng.expovariate(1.0))
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
            killed += victim.returncode == -signal.SIGKILL
            for process in processes:
                done = finish(process)
                for at, (value, right) in enumerate(zip(done["values"], RIGHT, strict=True)):
                    if value != right:
                        wrong += 1
                        print(f"value {at} is {value}, not {right}", flush=True)
                damaged += done["stats"]["disk"]["damaged"]
            left += len(list(folder.glob("*/tmp-*")))
            print(
                f"round {round_ + 1}: {killed}/{args.times} killed at work, {left} temporary files "
                f"left, {damaged} damaged, {wrong} wrong",
                flush=True,
            )
    return 1 if damaged or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
