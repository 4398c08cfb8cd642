"""Ray Train with workers of our process groups, one of which dies."""

from __future__ import annotations

import re

import pytest
import torch
from frameworks.processes import EXAMPLES, run


def alone() -> float:
    """The last loss of one process that takes the samples of both workers."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1).to("tpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(6):
        seeds = (1000 * epoch, 1000 * epoch + 1)
        parts = [torch.randn(16, 8, generator=torch.Generator().manual_seed(s)) for s in seeds]
        x = torch.cat(parts).to("tpu")
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_worker_changes_no_loss(tmp_path_factory: pytest.TempPathFactory) -> None:
    out = run(
        EXAMPLES / "ray_train.py",
        "--kill-once",
        timeout=800,
        RAY_AUTH_MODE="disabled",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_worker_niceness="0",  # 15 by default: on a busy machine a worker never starts
        RAY_TMPDIR=str(tmp_path_factory.mktemp("r")),  # its sockets ask for a short path
        RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="300",
    )
    found = re.search(r"^tpu:0, from epoch (\d), epoch 5, loss ([\d.]+)$", out, re.MULTILINE)
    assert found, out
    # It died in epoch 3. Whether the checkpoint of epoch 2 was taken by then is Ray's matter.
    assert 1 <= int(found[1]) <= 3
    assert float(found[2]) == pytest.approx(alone(), rel=1e-4)


def test_ray_knows_the_device() -> None:
    """Where a worker has a TPU of Ray's, `ScalingConfig(use_tpu=True)`."""
    from ray.air._internal.device_manager import TPUTorchDeviceManager

    manager = TPUTorchDeviceManager()
    manager.register_custom_torch_dist_backend()
    assert manager.is_available()
    assert manager.get_devices() == [torch.device("tpu")]
