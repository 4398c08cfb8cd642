"""torch's own CUDA eager against this backend on XLA:CUDA, by op, fused and compiled, on one
GPU.

Items: chain300 (300 small ops on 64x64), gpt2 (a training step of GPT-2 small: bf16 weights,
8x1024 tokens, AdamW, the same model code for all) and varlen (a step with each of 24 lengths from
200 to 660: the first call is the pass that compiles, the others are later ones). Each item is a
process with a time limit of its own, in which the contestants take turns; what is known is printed
after every round, so that an item cut short still says something. Ratios below 1: this backend is
faster.

    python benchmarks/gpu.py --seconds 90
    python benchmarks/gpu.py --tiny        # the same code on the CPU, in small
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
import torch_work
from spec import Gpt, learning_rate, spread
from torch import Tensor, nn
from torch_work import Block, GptModel, Work, chain, chain_op, with_weights
from varlen_work import tokens_of, training_pass
from weights import integers

MAX_SECONDS = 200
GPT2 = Gpt(layers=12, width=768, heads=12, vocab=50257, batch=8, length=1024)
TINY = Gpt(layers=2, width=64, heads=4, vocab=128, batch=2, length=32)
VARLEN = Gpt(layers=6, width=768, heads=12, vocab=50257, batch=4, length=660)


class FusedAttentionBlock(Block):
    """The same block with torch's scaled_dot_product_attention."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def synchronize(device: str) -> None:
    """Waits for the device; both kinds may be present, so not for "the" accelerator."""
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "tpu":
        import torch_tpu

        torch_tpu.tpu.synchronize()


def gpt2(device: str, tiny: bool) -> Work:
    """One step: forward, cross entropy, backward, AdamW."""
    spec = TINY if tiny else GPT2
    torch.manual_seed(0)
    model = GptModel(spec)
    model.blocks = nn.ModuleList(FusedAttentionBlock(spec) for _ in range(spec.layers))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
        else:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
    model = model.to(torch.bfloat16).to(device)
    shape = (spec.batch, spec.length)
    tokens = torch.from_numpy(integers("tokens", spec.vocab, shape)).long().to(device)
    targets = torch.from_numpy(integers("targets", spec.vocab, shape)).long().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    steps = itertools.count()

    def loss_of() -> Tensor:
        return F.cross_entropy(model(tokens).view(-1, spec.vocab), targets.view(-1))

    loss_of = torch_work.compiled(loss_of)
    update = torch_work.compiled(optimizer.step)

    def work() -> float:
        optimizer.param_groups[0]["lr"] = learning_rate(next(steps), 1e-4)
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        update()
        synchronize(device)
        return loss.item()

    return work


def gpt2_in_jax(tiny: bool) -> Work:
    """The same step in JAX, with cuDNN's attention on the GPU."""
    import jax.numpy as jnp
    import jax_work

    attention = "" if tiny else "cudnn"
    return jax_work.gpt(TINY if tiny else GPT2, jnp.bfloat16, attention, 1e-4)


def varlen(device: str, tiny: bool) -> Work:
    """A training step with each of 24 lengths."""
    spec = TINY if tiny else VARLEN
    if device == "jax":
        raise NotImplementedError("a program per length, jitted by hand")
    model = with_weights(GptModel(spec), device)
    lengths = spread(24, spec.length // 4, spec.length) if tiny else spread(24, 200, spec.length)
    return training_pass(model, model, tokens_of(spec, device), lengths, spec.vocab)


ITEMS: dict[str, Callable[[str, bool], Work]] = {
    "chain300": lambda device, tiny: chain(device, 64, chain_op),
    "gpt2": lambda device, tiny: gpt2_in_jax(tiny) if device == "jax" else gpt2(device, tiny),
    "varlen": varlen,
}


@dataclass
class Contestant:
    """One row: where it runs, in which mode of ours, and its times."""

    name: str
    device: str
    mode: str = ""
    work: Work | None = None
    first: float = math.nan
    value: float = math.nan
    times: list[float] = field(default_factory=list)

    def enter(self) -> None:
        """Sets the mode; it belongs to the process."""
        # Plain torch.compile: Inductor for CUDA, this backend for its own tensors.
        torch_work.COMPILER = "inductor" if self.mode in ("compile", "inductor") else ""
        if self.device == "tpu":
            import torch_tpu

            eager = "fused" if self.mode == "compile" else self.mode
            torch_tpu.set_mode(eager)  # type: ignore[arg-type]

    def start(self, make: Callable[[str], Work]) -> None:
        """Builds the workload, does the first call and warms up."""
        self.enter()
        work = make(self.device)
        begin = time.perf_counter()
        self.value = work()
        self.first = time.perf_counter() - begin
        for _ in range(2):
            self.settle()
            work()
        self.settle()
        self.work = work

    def settle(self) -> None:
        """Waits for programs compiled in the background."""
        if self.device == "tpu":
            import torch_tpu

            fused = getattr(torch_tpu, "fused", None)
            if hasattr(fused, "wait"):
                fused.wait()

    def turn(self, seconds: float) -> None:
        """A block of calls."""
        if self.work is None:
            return
        self.enter()
        self.work()  # the first call after another's turn is not counted
        stop = time.perf_counter() + seconds
        calls = 0
        while calls < 3 or time.perf_counter() < stop:
            begin = time.perf_counter()
            self.work()
            self.times.append(time.perf_counter() - begin)
            calls += 1


def lines(item: str, contestants: list[Contestant]) -> Iterator[str]:
    """The results so far."""
    reference = contestants[0].times
    for c in contestants:
        if not c.times:
            continue
        best, median = min(c.times), statistics.median(c.times)
        text = f"  {item} {c.name:<12} best {best * 1e3:8.3f} ms, median {median * 1e3:8.3f} ms"
        if c.mode and reference:
            over = (best / min(reference), median / statistics.median(reference))
            text += f", over {contestants[0].name}: {over[0]:.3f} best, {over[1]:.3f} median"
        yield f"{text}; first {c.first:.2f} s, gave {c.value:.6g}"


def run_item(item: str, tiny: bool, seconds: float, chosen: set[str]) -> None:
    """All contestants on one item, within the time."""
    end = time.monotonic() + seconds
    own = "cpu" if tiny else "cuda"
    contestants = [
        Contestant(f"torch-{own}", own),
        Contestant("inductor", own, "inductor"),
        Contestant("jax", "jax", "jax"),
        Contestant("ours-strict", "tpu", "strict"),
        Contestant("ours-fused", "tpu", "fused"),
        Contestant("ours-compile", "tpu", "compile"),
    ]
    contestants = [c for c in contestants if (c.mode or "torch") in chosen]
    for c in contestants:
        try:
            c.start(lambda device: ITEMS[item](device, tiny))
            print(f"  {item} {c.name}: first call {c.first:.2f} s", flush=True)
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            print(f"  {item} {c.name} failed: {type(error).__name__}: {first_line}", flush=True)
    turn = 0.05 if tiny else 0.5
    for number in range(3 if tiny else 8):
        if time.monotonic() > end - 3 * turn - 1:
            break
        for c in contestants:
            c.turn(turn)
        print(f" after round {number + 1}:", *lines(item, contestants), sep="\n", flush=True)


def main() -> int:
    """Starts a process per item, or is one (--item)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", default=",".join(ITEMS), metavar="A,B", help="(default: all)")
    parser.add_argument(
        "--seconds", type=float, default=90, help=f"for each item, at most {MAX_SECONDS}"
    )
    parser.add_argument(
        "--contestants",
        default="torch,strict,fused",
        metavar="A,B",
        help="which of torch, inductor, jax, strict, fused, compile (default: torch, strict, "
        "fused, in one process; a training step on CUDA needs a process without this backend, so "
        "run torch, inductor and jax apart there)",
    )
    parser.add_argument("--tiny", action="store_true", help="small sizes, on the CPU")
    parser.add_argument("--item", choices=ITEMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    seconds = min(args.seconds, MAX_SECONDS)
    if args.item:
        run_item(args.item, args.tiny, seconds - 5, set(args.contestants.split(",")))
        sys.stdout.flush()
        os._exit(0)  # tearing two runtimes down is no part of it
    items = args.items.split(",")
    if unknown := set(items) - set(ITEMS):
        parser.error(f"no item {', '.join(sorted(unknown))}; there are {', '.join(ITEMS)}")
    if not args.tiny and not torch.cuda.is_available():
        parser.error("torch sees no GPU; --tiny runs on the CPU")
    env = {"TORCH_TPU_PLUGIN": "cpu" if args.tiny else "cuda", **os.environ}
    failed = False
    for item in items:
        print(f"{item}: at most {seconds:.0f} s", flush=True)
        command = [sys.executable, __file__, "--item", item, "--seconds", str(seconds)]
        command += ["--contestants", args.contestants]
        command += ["--tiny"] * args.tiny
        try:
            code = subprocess.run(command, env=env, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
            print(f"  {item}: cut short after {seconds:.0f} s", flush=True)
        failed |= code != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
