"""Trains a small GPT on the bytes of a text and prints loss, speed and what was compiled.

The only thing that differs from a CPU or CUDA script is the name of the device:

    python examples/train_gpt.py --device tpu
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from gpt import GPT, Config
from torch import Tensor


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="tpu", help="where to train (default: tpu)")
    parser.add_argument("--steps", type=int, default=200, help="training steps (default: 200)")
    parser.add_argument("--batch", type=int, default=8, help="sequences per step (default: 8)")
    parser.add_argument("--length", type=int, default=64, help="tokens per sequence (default: 64)")
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate (default: 1e-3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data (default: 0)")
    parser.add_argument(
        "--text",
        type=Path,
        default=Path(__file__).resolve().parent.parent / "LICENSE",
        help="the file to learn (default: the licence)",
    )
    return parser.parse_args()


def batches(data: Tensor, batch: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random windows of the text: inputs and the same shifted by one."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - length - 1, (batch,), generator=generator)
    windows = torch.stack([data[s : s + length + 1] for s in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Warms up over the first tenth, then falls linearly: another number every step."""
    warmup = max(1, steps // 10)
    return peak * min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))


def main() -> int:
    """Trains; the exit code is 0 when the loss has fallen."""
    args = parse_args()
    torch.manual_seed(args.seed)
    data = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    if len(data) <= args.length + 1:
        print(f"{args.text} has {len(data)} bytes; --length {args.length} needs more")
        return 2
    model = GPT(Config(context=args.length)).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"GPT with {parameters / 1e6:.1f} M parameters on {args.device}, {args.text.name}")

    first = last = 0.0
    since, steps_since = time.perf_counter(), 0
    for step in range(args.steps):
        inputs, targets = batches(data, args.batch, args.length, args.seed * 100_003 + step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        logits = model(inputs.to(args.device))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.to(args.device).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps_since += 1
        if step == 0 or (step + 1) % 20 == 0 or step + 1 == args.steps:
            last = loss.item()
            first = first or last
            now = time.perf_counter()
            tokens = steps_since * args.batch * args.length / (now - since)
            rate = (now - since) / steps_since * 1e3
            label = " (compiles)" if step == 0 else ""
            print(
                f"step {step + 1:4d}/{args.steps}  loss {last:.4f}  "
                f"{rate:7.1f} ms/step  {tokens:8.0f} tokens/s{label}",
                flush=True,
            )
            since, steps_since = now, 0
    if args.device.startswith("tpu"):
        report()
    return 0 if args.steps < 20 or last < first else 1


def report() -> None:
    """What the backend did underneath."""
    import torch_tpu

    stats = torch_tpu.stats()
    fallbacks = torch_tpu.coverage()
    print(
        f"mode {torch_tpu.get_mode()}: {stats['compiles']} programs compiled in "
        f"{stats['compile_seconds']:.1f} s, {stats['hits']} cache hits, "
        f"{stats['misses']} misses, {len(fallbacks)} ops on the CPU"
    )
    print(
        f"memory: {torch.tpu.memory_allocated() / 2**20:.1f} MiB in use, "
        f"{torch.tpu.max_memory_allocated() / 2**20:.1f} MiB at the peak"
    )


if __name__ == "__main__":
    sys.exit(main())
