"""The examples of docs/huggingface.md run as they say."""

from __future__ import annotations

import re

import pytest
from frameworks.processes import EXAMPLES, run, torchrun


def losses(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss (\S+)", output)]


def test_accelerate_loop() -> None:
    script = EXAMPLES / "accelerate_loop.py"
    for output in (run(script), torchrun(2, script)):
        assert output.count("on tpu") == 4
        assert losses(output)[-1] < losses(output)[0]


@pytest.mark.parametrize(
    ("name", "said"), [("trainer", "on tpu:0"), ("sft_lora", "on tpu:0: the cat sits on")]
)
def test_trained(name: str, said: str) -> None:
    output = run(EXAMPLES / f"{name}.py")
    assert said in output
    assert losses(output)[-1] < losses(output)[0]
