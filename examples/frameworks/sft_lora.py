"""TRL's SFTTrainer with peft's LoRA on the device; then the adapter is merged and the model asked.

    python examples/frameworks/sft_lora.py

Model and tokenizer are made here. With `SFTTrainer("name of a model", ...)` the rest is the same.
"""

from __future__ import annotations

import tempfile

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

SENTENCES = ["the cat sits on the mat", "a dog runs under a tree", "the dog sits on a cat"]


def small_tokenizer() -> PreTrainedTokenizerFast:
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    vocabulary = {word: number for number, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def main() -> None:
    set_seed(0)
    tokenizer = small_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    trainer = SFTTrainer(
        LlamaForCausalLM(config),
        SFTConfig(
            tempfile.mkdtemp(),
            per_device_train_batch_size=6,
            max_steps=20,
            learning_rate=5e-2,
            max_length=16,
            # One size for all batches: one program for all steps.
            pad_to_multiple_of=16,
            logging_steps=5,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"text": SENTENCES * 20}),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(f"step {entry['step']}, loss {entry['loss']:.4f}")
    model = trainer.model.merge_and_unload()
    question = tokenizer("the cat", return_tensors="pt").to(model.device)
    answer = model.generate(**question, max_new_tokens=4, do_sample=False)
    print(f"on {answer.device}: {tokenizer.decode(answer[0])}")


if __name__ == "__main__":
    main()
