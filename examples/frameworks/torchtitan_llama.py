"""TorchTitan's Llama debug model on the device. TorchTitan itself is unchanged: this script makes
what a first run would download (a tokenizer, some text), and starts its trainer. What follows are
TorchTitan's own options:

    torchrun --nproc-per-node 4 examples/frameworks/torchtitan_llama.py \\
        --parallelism.tensor_parallel_degree 2 --checkpoint.enable --training.steps 10

With a tokenizer and a dataset of yours it is `torchrun ... -m torchtitan.train` and these options.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = ["the", "a", "cat", "dog", "sees", "runs", "over", "under", "blue", "green", "hill"]
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"


def write_text(folder: Path) -> list[str]:
    """Sentences of few words, as a dataset of one file."""
    source = random.Random(0)
    lines = [" ".join(source.choice(WORDS) for _ in range(200)) for _ in range(200)]
    folder.mkdir(parents=True)
    text = "".join(json.dumps({"text": line}) + "\n" for line in lines)
    (folder / "train.jsonl").write_text(text, encoding="utf-8")
    return lines


def write_tokenizer(folder: Path, lines: list[str]) -> None:
    """Bytes, and pairs of them that are frequent in the text."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = json.dumps({"bos_token": BEGIN, "eos_token": END})
    (folder / "tokenizer_config.json").write_text(named, encoding="utf-8")


def main() -> None:
    """The options of the command line come last, and so before these."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ.setdefault("HF_DATASETS_CACHE", str(folder / "cache"))
        write_tokenizer(folder / "tokenizer", write_text(folder / "text"))
        sys.argv[1:1] = [
            *("--model.name", "llama3", "--model.flavor", "debugmodel"),
            *("--model.hf_assets_path", str(folder / "tokenizer")),
            *("--training.dataset", "c4_test", "--training.dataset_path", str(folder / "text")),
            *("--training.local_batch_size", "4", "--training.seq_len", "32"),
            *("--lr_scheduler.warmup_steps", "2", "--metrics.log_freq", "1"),
        ]
        from torchtitan.train import Trainer, main as train

        train(Trainer)


if __name__ == "__main__":
    main()
