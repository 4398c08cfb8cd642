"""peft's LoRA and TRL's SFTTrainer and DPOTrainer on the device."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import frameworks.tiny as tiny
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

LORA = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
SENTENCES = ["the cat sits on the mat", "a dog runs under a tree fast", "the dog runs slow"]
QUIET: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "max_steps": 4,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "learning_rate": 1e-2,
    "bf16": False,
}


def losses(run: Any) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


def train_lora(device: str) -> tuple[list[float], Any]:
    base = tiny.llama()
    torch.manual_seed(1)
    model = get_peft_model(base, LORA).to(device)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    found = []
    for x in tiny.tokens(16).to(device).split(4):
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found, model


def test_lora_trains_saves_and_merges(tmp_path: Path) -> None:
    ours, model = train_lora("tpu")
    theirs, _ = train_lora("cpu")
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert {p.device.type for p in model.parameters()} == {"tpu"}
    model.eval()
    x = tiny.tokens(2).to("tpu")
    with torch.no_grad():
        expected = model(x).logits
        model.save_pretrained(tmp_path)
        loaded = PeftModel.from_pretrained(tiny.llama().to("tpu"), str(tmp_path)).eval()
        assert {p.device.type for p in loaded.parameters()} == {"tpu"}
        torch.testing.assert_close(loaded(x).logits, expected)
        merged = model.merge_and_unload()
        assert not isinstance(merged, PeftModel)
        torch.testing.assert_close(merged(x).logits, expected, atol=1e-4, rtol=1e-4)


def sft(folder: Path, lora: bool = False, **options: Any) -> SFTTrainer:
    torch.manual_seed(0)
    run = SFTTrainer(
        tiny.llama(),
        SFTConfig(str(folder), **{**QUIET, "max_length": 32, "pad_to_multiple_of": 16, **options}),
        train_dataset=Dataset.from_dict({"text": SENTENCES * 8}),
        processing_class=tiny.tokenizer(),
        peft_config=copy.deepcopy(LORA) if lora else None,
    )
    run.train()
    return run


def test_sft_trains_on_the_device_as_on_the_cpu(tmp_path: Path) -> None:
    ours = sft(tmp_path)
    assert ours.accelerator.device.type == "tpu"
    assert {p.device.type for p in ours.model.parameters()} == {"tpu"}
    type(ours.accelerator.state)._reset_state(True)
    theirs = sft(tmp_path, use_cpu=True)
    assert {p.device.type for p in theirs.model.parameters()} == {"cpu"}
    assert losses(ours) == pytest.approx(losses(theirs), abs=1e-4)


def test_sft_with_lora_and_packing_in_bfloat16(tmp_path: Path) -> None:
    run = sft(tmp_path, lora=True, packing=True, bf16=True)
    assert isinstance(run.model, PeftModel)
    assert {p.device.type for p in run.model.parameters()} == {"tpu"}
    assert losses(run)[-1] < losses(run)[0]


def test_dpo(tmp_path: Path) -> None:
    rows = {"prompt": ["the cat", "a dog"] * 4, "chosen": [" sits", " runs"] * 4}
    rows["rejected"] = [" tree", " mat"] * 4
    run = DPOTrainer(
        tiny.llama(),
        ref_model=tiny.llama(),  # made here, so that there is no name to load it by
        args=DPOConfig(str(tmp_path), **QUIET),
        train_dataset=Dataset.from_dict(rows),
        processing_class=tiny.tokenizer(),
    )
    run.train()
    assert {p.device.type for p in run.model.parameters()} == {"tpu"}
    assert losses(run)[0] == pytest.approx(0.6931, abs=1e-3)  # log(2): both models are the same
    assert losses(run)[-1] < 0.6
