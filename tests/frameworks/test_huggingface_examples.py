"""The examples of docs/huggingface.md run as they say."""

from __future__ import annotations

import re
from typing import Any

import pytest

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def losses(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss (\S+)", output)]


def test_accelerate_loop(run_script: Any) -> None:
    script = "examples/frameworks/accelerate_loop.py"
    for words in ((script,), (*TORCHRUN, script)):
        output = run_script(*words)
        assert output.count("on tpu") == 4
        assert losses(output)[-1] < losses(output)[0]


@pytest.mark.parametrize(
    ("name", "said"), [("trainer", "on tpu:0"), ("sft_lora", "on tpu:0: the cat sits on")]
)
def test_trained(name: str, said: str, run_script: Any) -> None:
    output = run_script(f"examples/frameworks/{name}.py")
    assert said in output
    assert losses(output)[-1] < losses(output)[0]
