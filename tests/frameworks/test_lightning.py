"""Lightning's Trainer on the device: the same losses as on the CPU, and never the CPU unasked."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from frameworks.lightning_models import Small, data, trainer
from frameworks.processes import EXAMPLES, run, torchrun
from lightning.pytorch.callbacks import (
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateFinder,
    ThroughputMonitor,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger

HERE = Path(__file__).parent
RANKS_AGREE = 1e-5


def trained(**options: Any) -> Small:
    model = Small()
    trainer(**{"max_epochs": 2, **options}).fit(model, data(), data())
    return model


@pytest.fixture(scope="module")
def expected() -> list[float]:
    model = trained(accelerator="cpu")
    assert model.seen == {("cpu", torch.float32)}
    return model.values


@pytest.mark.parametrize("options", [{}, {"accelerator": "tpu", "devices": 1}])
def test_losses_are_those_of_the_cpu(options: dict[str, Any], expected: list[float]) -> None:
    model = trained(**options)
    assert model.seen == {("tpu", torch.float32)}
    assert model.values == pytest.approx(expected, abs=1e-4)


def test_it_says_which_device(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    bar = TQDMProgressBar()  # the other one, Rich's, draws on terminals only
    with caplog.at_level(logging.INFO):
        trainer(max_epochs=1, enable_progress_bar=True, callbacks=bar).fit(Small(), data())
    assert "TPU available: True, using: 1 TPU cores" in caplog.text
    out, err = capsys.readouterr()
    assert "4/4" in out + err  # the progress bar came to its end
    assert "loss" in out + err


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16-mixed", torch.float32), ("bf16-true", torch.bfloat16)]
)
def test_precision(precision: Any, dtype: torch.dtype, expected: list[float]) -> None:
    model = trained(precision=precision)
    assert model.seen == {("tpu", torch.bfloat16)}
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model.values == pytest.approx(expected, rel=0.05)


def test_float16_with_scaled_gradients(recwarn: pytest.WarningsRecorder) -> None:
    model = trained(precision="16-mixed")
    assert model.seen == {("tpu", torch.float16)}
    assert model.values[-1] < model.values[0]
    assert not [one for one in recwarn if "CUDA" in str(one.message)]


def test_resumed_training_has_the_same_losses(tmp_path: Path, expected: list[float]) -> None:
    first = Small()
    short = trainer(max_epochs=1)
    short.fit(first, data(), data())
    short.save_checkpoint(tmp_path / "one.ckpt")
    second = Small(rate=7.0)  # all of it comes from the file
    trainer(max_epochs=2).fit(second, data(), data(), ckpt_path=tmp_path / "one.ckpt")
    assert second.seen == {("tpu", torch.float32)}
    assert first.values + second.values == pytest.approx(expected, abs=1e-4)


def test_callbacks(tmp_path: Path) -> None:
    model = Small()
    stop = EarlyStopping("val", patience=0, min_delta=1e6)
    finder = LearningRateFinder(num_training_steps=25, attr_name="rate", early_stop_threshold=None)
    watched = trainer(
        max_epochs=5,
        callbacks=[
            stop,
            finder,
            DeviceStatsMonitor(),
            ThroughputMonitor(lambda _: 8, window_size=2),
        ],
        logger=CSVLogger(tmp_path, flush_logs_every_n_steps=1),
        log_every_n_steps=1,
        default_root_dir=tmp_path,
    )
    watched.fit(model, data(), data())
    assert watched.current_epoch == 2  # of 5: the second is not better by a million
    assert finder.optimal_lr.suggestion() == model.rate
    metrics = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert "on_train_batch_end/allocated_bytes.all.current" in metrics
    assert "device/batches_per_sec" in metrics


class Manual(Small):
    """Two optimizers that take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        optimizer: Any = self.optimizers()[index % 2]
        loss = self.loss(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        first, _, second = self.net
        return [torch.optim.SGD(first.parameters(), 0.1), torch.optim.SGD(second.parameters(), 0.1)]


def test_manual_optimization() -> None:
    models = [Manual(), Manual()]
    for accelerator, model in zip(("tpu", "cpu"), models, strict=True):
        trainer(max_epochs=1, accelerator=accelerator).fit(model, data())
    assert models[0].seen == {("tpu", torch.float32)}
    assert models[0].values == pytest.approx(models[1].values, abs=1e-4)


def test_an_isolated_part_draws_no_numbers_of_the_rest() -> None:
    from lightning.pytorch.utilities.seed import isolate_rng

    torch.manual_seed(1)
    expected = torch.rand(3, device="tpu").tolist()
    torch.manual_seed(1)
    with isolate_rng():
        torch.rand(5, device="tpu")
    assert torch.rand(3, device="tpu").tolist() == expected


def test_full_memory_is_known_as_such() -> None:
    """By which the search for a batch size goes."""
    from lightning.pytorch.utilities.memory import is_oom_error

    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2**50, device="tpu")
    assert is_oom_error(caught.value)


def test_peaks_of_chips() -> None:
    from torch_tpu.aot.topologies import generation_of

    names = {"TPU v4": 275, "TPU v5 lite": 197, "TPU v5e": 197, "TPU v5": 459, "TPU v6 lite": 918}
    names |= {"TPU v6e": 918, "TPU7x": 1153}
    found = {name: generation_of(name) for name in names}
    assert {name: one and one.flops / 1e12 for name, one in found.items()} == names
    assert generation_of("cpu") is None


@pytest.mark.parametrize(
    ("devices", "error"),
    [([1], "sees 1"), ("x", "'x'"), ([0, 0], "at most once"), ([0, "1"], "a list of numbers")],
)
def test_devices_that_are_not_there(devices: Any, error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        L.Trainer(accelerator="tpu", devices=devices)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"strategy": "xla", "devices": 2}, "torch_xla"),
        ({"strategy": "fsdp", "devices": 2, "precision": "16-mixed"}, "bf16-mixed"),
    ],
)
def test_what_cannot_work_raises(options: dict[str, Any], error: str) -> None:
    with pytest.raises((ValueError, ModuleNotFoundError), match=error):
        L.Trainer(**options)


def test_nothing_of_it_is_loaded_before_lightning_is() -> None:
    out = run(
        "-c",
        "import sys, torch, torch_tpu; print([m for m in sys.modules"
        " if m.startswith(('lightning', 'torch_tpu._frameworks.'))])",
    )
    assert out == "[]\n"


OTHER_NAMES = """
import torch
import pytorch_lightning as pl
from lightning_fabric import Fabric

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, _):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

trainer = pl.Trainer(max_steps=2, logger=False, enable_checkpointing=False, precision="bf16-mixed")
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(4, 2)))
print(trainer.strategy.root_device, trainer.global_step, Fabric().device)
"""


def test_the_packages_by_their_older_names() -> None:
    assert run("-c", OTHER_NAMES).splitlines()[-1] == "tpu:0 2 tpu:0"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_strategies_of_two_ranks() -> None:
    out = torchrun(2, HERE / "lightning_ranks.py", timeout=800)
    found = json.loads(out[out.index("RESULT") + len("RESULT") :])
    assert set(found) == {"ddp", "ddp resumed", "fsdp", "fsdp resumed", "fsdp2", "fabric"}
    assert {one["device"] for one in found.values()} == {"tpu:0"}
    for name, one in found.items():
        assert one["difference"] < RANKS_AGREE, name


def test_one_device_under_several_ranks_raises() -> None:
    """It would be several trainings."""
    code = "import lightning as L\ntry: L.Trainer(devices=1)\nexcept ValueError as e: print(e)"
    out = torchrun(2, "--no-python", sys.executable, "-c", code)
    assert out.count("would train a model of its own in each") == 2


def test_example() -> None:
    """Lightning starts the second process by itself."""
    out = run(EXAMPLES / "lightning_trainer.py", "--devices", "2")
    assert "trained on tpu:0, 2 processes" in out
    losses = [float(line.split()[-1]) for line in out.splitlines() if "validation" in line]
    assert losses[-1] < losses[0] / 2
