"""transformers.Trainer on the device, with a small Llama of random weights.

    python examples/frameworks/trainer.py
    torchrun --nproc-per-node 2 examples/frameworks/trainer.py

TrainingArguments(use_cpu=True) stays on the CPU; bf16=True is what a TPU likes.
"""

from __future__ import annotations

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


def main() -> None:
    set_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    # Each row counts on from a random number.
    rows = [(torch.randint(64, (1,)) + torch.arange(32)) % 64 for _ in range(256)]
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        max_steps=30,
        learning_rate=3e-3,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        LlamaForCausalLM(config), arguments, train_dataset=data, eval_dataset=data[:32]
    )
    trainer.train()
    evaluated = trainer.evaluate()
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            if "loss" in entry:
                print(f"step {entry['step']}, loss {entry['loss']:.4f}")
        print(f"evaluated {evaluated['eval_loss']:.4f} on {trainer.args.device}")


if __name__ == "__main__":
    main()
