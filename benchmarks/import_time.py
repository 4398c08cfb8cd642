"""What this package adds to `import torch`, which loads it by itself.

Each import runs in a process of its own, with and without the autoload, taking turns. With
TORCH_TPU_BENCH_PEER_PYTHON set, the same is measured for the packages of that interpreter.

    python benchmarks/import_time.py --rounds 9
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

from contestants import PEER_PYTHON

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
PROGRAM = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"


def seconds(python: str, autoload: bool, folder: str) -> float:
    """One import, timed inside the child: starting Python is no part of it."""
    env = {**os.environ, AUTOLOAD: "1" if autoload else "0", "TPU_SKIP_MDS_QUERY": "1"}
    done = subprocess.run(
        [python, "-c", PROGRAM], capture_output=True, text=True, env=env, cwd=folder
    )
    if done.returncode != 0:
        raise SystemExit(f"import torch failed in {python}:\n{done.stderr}")
    return float(done.stdout.splitlines()[-1])


def main() -> int:
    """Prints medians and the median of the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="imports of each (default: 7)")
    args = parser.parse_args()
    pythons = {"ours": sys.executable}
    if peer := os.environ.get(PEER_PYTHON):
        pythons["peer"] = peer
    plain: dict[str, list[float]] = {name: [] for name in pythons}
    loaded: dict[str, list[float]] = {name: [] for name in pythons}
    with tempfile.TemporaryDirectory() as folder:  # not the repository: it would be imported
        for number in range(args.rounds + 1):
            for name, python in pythons.items():
                without, with_us = (seconds(python, on, folder) for on in (False, True))
                if number > 0:  # the first round fills the file cache
                    plain[name].append(without)
                    loaded[name].append(with_us)
            print(f"round {number} of {args.rounds}", file=sys.stderr, flush=True)
    print(f"{'import torch, s':<16} {'without':>8} {'with':>8} {'difference':>11} {'least':>8}")
    for name in pythons:
        pairs = list(zip(plain[name], loaded[name], strict=True))
        difference = statistics.median(b - a for a, b in pairs)
        least = min(loaded[name]) - min(plain[name])
        print(
            f"{name:<16} {statistics.median(plain[name]):>8.3f} "
            f"{statistics.median(loaded[name]):>8.3f} {difference:>+11.3f} {least:>+8.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
