"""Plain torchrun with --max-restarts: a rank dies in the middle of a step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from frameworks.processes import EXAMPLES, torchrun

# Each op the same program in every start. In Fused Eager the first steps of a start run op by op,
# the next as larger programs, whose results are rounded elsewhere.
MODE = {"TORCH_TPU_MODE": "strict"}
RESTART = EXAMPLES / "restart.py"


def losses(out: str) -> list[tuple[int, int, float]]:
    """(how often torchrun has restarted, step, loss)"""
    found = re.findall(r"start (\d+) step (\d+) loss (\S+)", out)
    return [(int(start), int(step), float(loss)) for start, step, loss in found]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_losses_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    whole = losses(torchrun(2, RESTART, tmp_path / "whole", timeout=400, **MODE))
    assert [step for _, step, _ in whole] == list(range(1, 13))
    expected = {step: loss for _, step, loss in whole}

    killed = ("--kill", "7")
    options = ("--max-restarts", "1")
    out = torchrun(2, RESTART, tmp_path / "cut", *killed, options=options, timeout=400, **MODE)
    found = losses(out)
    # Steps 5 and 6 are repeated: the last checkpoint was that of step 4.
    assert [(start, step) for start, step, _ in found] == [
        *((0, step) for step in range(1, 7)),
        *((1, step) for step in range(5, 13)),
    ]
    assert [loss for _, _, loss in found] == [expected[step] for _, step, _ in found]
    assert expected[12] < expected[1]
