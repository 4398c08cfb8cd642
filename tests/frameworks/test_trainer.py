"""transformers.Trainer: on the device without a word about it, with the losses of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import frameworks.tiny as tiny
import pytest
import torch
from transformers import Trainer, TrainingArguments, set_seed


def trainer(folder: Any, dropout: float = 0.0, **options: Any) -> Trainer:
    set_seed(0)
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    arguments = TrainingArguments(str(folder), **{**defaults, **options})
    model = tiny.llama(attention_dropout=dropout)
    rows = tiny.examples(32)
    return Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:10])


def losses(run: Trainer, name: str = "loss") -> list[float]:
    return [entry[name] for entry in run.state.log_history if name in entry]


def test_it_trains_on_the_device_as_on_the_cpu(tmp_path: Path) -> None:
    ours = trainer(tmp_path)
    assert ours.args.device == torch.device("tpu:0")
    ours.train()
    assert next(ours.model.parameters()).device == torch.device("tpu:0")
    evaluated = ours.evaluate()["eval_loss"]
    ours.accelerator.free_memory()
    type(ours.accelerator.state)._reset_state(True)

    theirs = trainer(tmp_path, use_cpu=True)
    assert theirs.args.device == torch.device("cpu")
    theirs.train()
    assert next(theirs.model.parameters()).device == torch.device("cpu")
    assert len(losses(ours)) == 6
    assert losses(ours) == pytest.approx(losses(theirs), abs=1e-4)
    assert evaluated == pytest.approx(theirs.evaluate()["eval_loss"], abs=1e-3)


def test_bfloat16_accumulation_checkpointing_and_workers(tmp_path: Path) -> None:
    run = trainer(
        tmp_path,
        bf16=True,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=2,
        gradient_checkpointing=True,
        dataloader_num_workers=2,
        eval_strategy="steps",
        eval_steps=3,
    )
    run.train()
    assert len(losses(run)) == 6
    assert len(losses(run, "eval_loss")) == 2
    assert losses(run)[0] == pytest.approx(4.16, abs=0.1)  # log(64), nothing learned yet
    assert losses(run, "eval_loss")[1] < losses(run, "eval_loss")[0]


def test_compiled(tmp_path: Path) -> None:
    run = trainer(tmp_path, torch_compile=True, max_steps=3)
    run.train()
    assert run.args.torch_compile_backend == "inductor"  # which this device takes over
    plain = trainer(tmp_path, max_steps=3)
    plain.train()
    assert losses(run) == pytest.approx(losses(plain), abs=1e-4)


def test_the_same_losses_after_resuming(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dropout": 0.3, "save_strategy": "steps", "save_steps": 3}
    whole = trainer(tmp_path, **options)
    whole.train()
    resumed = trainer(tmp_path, **options)
    torch.rand(100, device="tpu")  # the numbers go on from the checkpoint, not from here
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.global_step == 6
    assert losses(resumed) == losses(whole)
    assert (tmp_path / "checkpoint-3" / "rng_state.tpu.pth").exists()


def rank_trains(folder: str) -> tuple[list[float], str, int]:
    import tempfile

    tiny.as_launched()
    run = trainer(tempfile.mkdtemp(), per_device_train_batch_size=2, max_steps=4)
    run.train()
    return losses(run), str(run.args.device), run.args.world_size


def test_two_ranks_equal_one(tmp_path: Path, two: Any) -> None:
    first, second = two.run(rank_trains, str(tmp_path), timeout=250)
    assert first == second
    found, device, ranks = first
    assert (device, ranks) == ("tpu:0", 2)
    alone = trainer(tmp_path, max_steps=4)
    alone.train()
    assert found == pytest.approx(losses(alone), abs=1e-3)
