"""Lightning Fabric on the device: the loop is the user's, the device and the precision Fabric's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from frameworks.lightning_models import Small, data
from frameworks.processes import EXAMPLES, run
from lightning.fabric import Fabric


def train(fabric: Fabric, epochs: int = 2, state: dict[str, Any] | None = None) -> list[float]:
    small = Small()
    model, optimizer = fabric.setup(small.net, torch.optim.Adam(small.parameters(), small.rate))
    if state is not None:
        state.update(model=model, optimizer=optimizer)
    losses = []
    for _ in range(epochs):
        for x, y in fabric.setup_dataloaders(data()):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x).float(), y.float())
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=10.0)
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def expected() -> list[float]:
    fabric = Fabric(accelerator="cpu")
    assert fabric.device.type == "cpu"
    return train(fabric)


@pytest.mark.parametrize("options", [{}, {"accelerator": "tpu", "devices": 1}])
def test_losses_are_those_of_the_cpu(options: dict[str, Any], expected: list[float]) -> None:
    fabric = Fabric(**options)
    fabric.launch()
    assert fabric.device == torch.device("tpu", 0)
    assert train(fabric) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_precision(precision: Any, expected: list[float]) -> None:
    fabric = Fabric(precision=precision)
    assert train(fabric) == pytest.approx(expected, rel=0.05)
    with fabric.autocast():
        ones = torch.ones(2, 2, device=fabric.device)
        assert (ones @ ones).dtype == torch.bfloat16


def test_saved_and_loaded(tmp_path: Path) -> None:
    fabric = Fabric()
    state: dict[str, Any] = {"step": 3}
    train(fabric, 1, state)
    fabric.save(tmp_path / "state.ckpt", state)
    other: dict[str, Any] = {}
    train(fabric, 0, other)
    other["step"] = 0
    fabric.load(tmp_path / "state.ckpt", other)
    assert other["step"] == 3
    for one, two in zip(state["model"].parameters(), other["model"].parameters(), strict=True):
        assert two.device.type == "tpu"
        assert torch.equal(one, two)


def test_one_process_for_all_devices_raises() -> None:
    with pytest.raises(ValueError, match="strategy='ddp'"):
        Fabric(strategy="dp", devices=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_example() -> None:
    out = run(EXAMPLES / "fabric_loop.py", "--devices", "2", timeout=800)
    assert "2 processes, the first on tpu:0" in out
    losses = [float(line.split()[-1]) for line in out.splitlines() if "loss" in line]
    assert losses[-1] < losses[0] / 2


COUNT = """
import torch
from lightning.fabric import Fabric

fabric = Fabric()
ranks = fabric.all_gather(torch.tensor(fabric.global_rank, device=fabric.device))
fabric.print(fabric.device, ranks.tolist())
"""


@pytest.mark.timeout(900)
def test_the_command_starts_the_processes(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(COUNT)
    command = "from lightning.fabric.cli import _main; _main()"  # what `fabric` is
    out = run("-c", command, "run", "--devices", "2", tmp_path / "count.py", timeout=800)
    assert out.splitlines()[-1] == "tpu:0 [0, 1]"
