"""The same script cuts the same programs in every process, however busy the machine is:
python tests/stress/fingerprints.py --processes 20"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

SCRIPT = """
import torch, torch_tpu
import torch.nn.functional as F
from torch import nn

torch_tpu.fused.compile_when("never")
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
model = nn.Sequential(nn.Embedding(11, 8), layer, nn.Linear(8, 11)).to("tpu")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    tokens = torch.randint(11, (2, 5)).to("tpu")
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step != 2:
        loss.item()
x = torch.ones(3, device="tpu")
for turn in range(301):  # cut by the planner
    x = (x * 1.5).clamp(max=2) - 0.5
    x[turn % 3 :].neg_()
x.tolist()
for program in torch_tpu.fused.programs():
    print(program["fingerprint"])
"""


def _fingerprints(_number: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout.split()


def fingerprints_of_processes(processes: int, at_once: int) -> list[list[str]]:
    """The programs of each process, in the order it met them."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(_fingerprints, range(processes)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=3)
    arguments = parser.parse_args()
    lists = fingerprints_of_processes(arguments.processes, arguments.at_once)
    different = [number for number, names in enumerate(lists) if names != lists[0]]
    print(f"{len(lists)} processes, {len(lists[0])} programs, {len(different)} differ {different}")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
