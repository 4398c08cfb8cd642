"""The workloads by name, and their sizes. What they compute is in torch_work.py and jax_work.py."""

from __future__ import annotations

import random
from dataclasses import dataclass

CHAIN_OPS = 300


@dataclass(frozen=True)
class Gpt:
    """Sizes of a GPT and of the tokens it is given."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    vocab: int = 1000
    batch: int = 2
    length: int = 128


@dataclass(frozen=True)
class Mlp:
    """Sizes of the MLP and its batch."""

    layers: int = 4
    width: int = 512
    batch: int = 64


@dataclass(frozen=True)
class ConvNet:
    """Channels and strides of the convolutions, and the images they are given."""

    channels: tuple[int, ...] = (32, 32, 64, 64, 128, 128)
    strides: tuple[int, ...] = (1, 1, 2, 1, 2, 1)
    classes: int = 10
    batch: int = 8
    side: int = 32


@dataclass(frozen=True)
class Generation:
    """Sizes of the GPT-2 that generates, lengths of the prompts and of the answers."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    vocab: int = 256
    prompts: tuple[int, ...] = (5, 9, 17)
    new_tokens: int = 64


@dataclass(frozen=True)
class Moving:
    """How long the loops over indices are, and the sizes of what they index."""

    rows: int = 128
    reads: int = 64
    steps: int = 64
    positions: int = 64
    cells: int = 40
    width: int = 32
    heads: int = 4


@dataclass(frozen=True)
class Tail:
    """A data set whose last batch is smaller, and the convolutions that learn from it."""

    samples: int = 264
    batch: int = 32
    channels: tuple[int, ...] = (16, 32, 64)
    side: int = 16
    classes: int = 10


def spread(count: int, low: int = 17, high: int = 128) -> tuple[int, ...]:
    """So many lengths, in the order in which an epoch may bring them."""
    lengths = [low + round(i * (high - low) / (count - 1)) for i in range(count)]
    random.Random(count).shuffle(lengths)
    return tuple(lengths)


LEARNING_STEPS = 8


def learning_rate(step: int, rate: float) -> float:
    """Learning all but stops after a few steps.

    The first steps show that contestants agree. A model that went on learning one batch would end
    in denormal numbers, which slow PyTorch's CPU kernels twentyfold and others not at all. Not
    zero: that may take a shortcut.
    """
    return rate if step < LEARNING_STEPS else 1e-12


GPT = Gpt()
SHORT_GPT = Gpt(layers=2, batch=1)
LENGTHS = tuple(range(17, 129, 7))[:16]
LOOPS = tuple(random.Random(20).choices(range(1, 41), k=20))  # steps between two reads
MLP = Mlp()
SMALL_MLP = Mlp(layers=2, width=32, batch=8)
GENERATION = Generation()
CONVNET = ConvNet()
VARLEN = {16: spread(16), 24: spread(24)}
MOVING = Moving()
TAIL = Tail()

_VARLEN_WHAT = {
    "forward": "forward, argmax of the last position read",
    "train": "training steps with AdamW, the loss read",
}
_MODELS = {"": "the 2-layer GPT", "hf_": "GPT-2 of transformers, 2 layers"}

# Measured when asked for, by these names or one by one.
GROUPS: dict[str, dict[str, str]] = {
    "varlen": {
        f"varlen_{model}{kind}{count}": f"{title} over {count} lengths: {what}"
        for model, title in _MODELS.items()
        for kind, what in _VARLEN_WHAT.items()
        for count in VARLEN
    },
    "moving": {
        "moving_write": "for i in range(128): x[i] += 1; each call another range",
        "moving_read": "for i in range(64): x[i].sum().item(); each call another range",
        "moving_rnn": "an RNN over x[t], 64 steps; each call another range",
        "moving_cache": "a cache written at [:, :, p:p+1], attention over it, 64 positions",
        "moving_lstm": "an LSTMCell over xs[:, k], 40 steps and backward; each call another range",
    },
    "tail": {
        "tail": "conv net: first call 8 steps of 32 samples, second the step of 8, then epochs",
        "tail_autocast": "the same under autocast to bfloat16",
    },
}

WORKLOADS: dict[str, str] = {
    "tiny300": f"{CHAIN_OPS} ops on 8x8: x*0.5, +x, relu",
    "chain300": f"{CHAIN_OPS} ops on 64x64: sin, *0.5, +x",
    "mlp": "training step of an MLP: 4 layers of 512, batch 64, SGD",
    "gpt": "training step of a GPT: 4 layers, width 256, 4 heads, 2x128 tokens, vocab 1000, AdamW",
    "gpt_forward": "the same GPT, forward only, no gradient",
    "convnet": "training step of 6 conv+BN+ReLU, batch 8, 32x32 images, SGD with momentum",
    "lengths16": "forward of a 2-layer GPT over 16 sequence lengths, argmax read each time",
    "loops20": "20 training loops of 1 to 40 steps, the loss read after each loop",
    "generate64": "greedy generate() of 64 tokens after 3 prompts, GPT-2 of transformers",
    "memory": "the GPT training step again: compare the peaks of device memory",
    "gpt_first": "first GPT training step of a new process, nothing cached",
    "gpt_warm": "first GPT training step of a new process, caches on disk filled by another",
    **{name: what for group in GROUPS.values() for name, what in group.items()},
}
DEFAULT = tuple(name for name in WORKLOADS if not any(name in group for group in GROUPS.values()))


@dataclass(frozen=True)
class Fresh:
    """A workload of which every call is the first one of a new process."""

    work: str
    keeps_cache: bool


FRESH: dict[str, Fresh] = {
    "gpt_first": Fresh("gpt", keeps_cache=False),
    "gpt_warm": Fresh("gpt", keeps_cache=True),
}
