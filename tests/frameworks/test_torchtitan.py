"""TorchTitan's Llama debug model on the device: parallelisms, compile, checkpoints, its figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from frameworks.processes import EXAMPLES, torchrun

LLAMA = EXAMPLES / "torchtitan_llama.py"


def losses(out: str) -> dict[int, float]:
    """By step, of the last rank: the first has none in a pipeline."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    found = re.findall(r"step: +(\d+) +loss: +(-?[\d.]+)", plain)
    return {int(step): float(loss) for step, loss in found}


def train(ranks: int, *words: str, timeout: float = 800) -> dict[int, float]:
    """The losses that the last rank logs."""
    options = ("--local-ranks-filter", str(ranks - 1))
    return losses(torchrun(ranks, LLAMA, *words, options=options, timeout=timeout, logs=True))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_four_ranks_then_two(tmp_path: Path) -> None:
    """FSDP2 and tensor parallel over four ranks; the checkpoint of step 2 is taken on by two, with
    half of the tensor parallelism and no other losses."""
    common = ("--job.dump_folder", str(tmp_path), "--training.steps", "4", "--checkpoint.enable")
    common += ("--checkpoint.interval", "2", "--parallelism.data_parallel_shard_degree", "2")
    whole = train(4, *common, "--parallelism.tensor_parallel_degree", "2")
    assert list(whole) == [1, 2, 3, 4]
    assert whole[4] < whole[1] - 1
    last = tmp_path / "checkpoint" / "step-4"
    last.rename(tmp_path / "last")
    resumed = train(2, *common)
    assert list(resumed) == [3, 4]
    assert resumed == pytest.approx({3: whole[3], 4: whole[4]}, abs=0.02)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pipeline(tmp_path: Path) -> None:
    found = train(
        2,
        *("--job.dump_folder", str(tmp_path), "--training.steps", "4"),
        *("--parallelism.pipeline_parallel_degree", "2"),
    )
    assert list(found) == [1, 2, 3, 4]
    assert found[4] < found[1] - 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_compiled_is_as_eager(tmp_path: Path) -> None:
    common = ("--job.dump_folder", str(tmp_path), "--training.steps", "3", "--debug.seed", "1")
    eager, compiled = train(1, *common), train(1, *common, "--compile.enable")
    assert list(compiled) == [1, 2, 3]
    assert compiled == pytest.approx(eager, abs=0.05)


def test_peaks_by_the_names_of_chips() -> None:
    from torchtitan.tools.utils import get_peak_flops

    names = {"TPU v5 lite": 197e12, "TPU v6 lite": 918e12, "TPU7x": 1153e12}
    assert {name: get_peak_flops(name) for name in names} == names
    assert get_peak_flops("NVIDIA A100") == 312e12


@pytest.mark.parametrize("counts", [[4, 2, 1, 3, 1, 2, 3, 4], [0, 0, 5, 0, 0, 7, 0, 0], [0] * 8])
def test_tokens_by_expert_are_those_of_its_reference(counts: list[int]) -> None:
    """What TorchTitan has a Triton kernel for."""
    from torchtitan.models.moe.kernels import generate_permute_indices

    tokens = torch.tensor(counts, dtype=torch.int32)
    arguments: Any = {"experts_per_rank": 4, "num_ranks": 2, "max_len": 128, "alignment": 8}
    expected = generate_permute_indices(tokens, **arguments, use_cpu=True)
    found = generate_permute_indices(tokens.to("tpu"), **arguments)
    for one, other in zip(found, expected, strict=True):
        assert one.device.type == "tpu"
        assert torch.equal(one.cpu(), other)
