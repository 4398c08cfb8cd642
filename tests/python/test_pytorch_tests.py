"""The runner of PyTorch's own tests, on a small folder of tests that pass, fail, hang and crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_tests.expected import read_expected
from pytorch_tests.files import COMPILED, GENERIC, LARGE, chosen_files
from pytorch_tests.run import last_line, twin_of

TESTS = """
import os, time, unittest
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

class TestTiny(TestCase):
    def test_adds(self, device):
        self.assertEqual((torch.ones(3, device=device) + 1).cpu(), torch.full((3,), 2.0))

    def test_fails_here(self, device):
        self.assertTrue(device.startswith("cpu"), "this is not the CPU")

    def test_fails_everywhere(self, device):
        self.assertEqual(1, 2)

    def test_hangs(self, device):
        time.sleep(60 if "tpu" in device else 0)

    def test_is_skipped(self, device):
        self.skipTest("of its own accord")

    def test_kills_the_process(self, device):
        if "tpu" in device:
            os.abort()

    def test_zz_comes_after(self, device):
        pass

instantiate_device_type_tests(TestTiny, globals())
"""

RANKS = """
import torch, torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.common_fsdp import FSDPTestContinuous, get_devtype
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms
from torch.testing._internal.inductor_utils import GPU_TYPE

class TestRanks(DTensorTestBase):
    @skip_if_lt_x_gpu(4)
    @with_comms
    def test_a_process_each(self):
        self.assertEqual((GPU_TYPE, self.device_type, self.world_size), ("tpu", "tpu", 4))
        x = distribute_tensor(torch.arange(8.0), self.build_device_mesh(), [Shard(0)])
        self.assertEqual(x.to_local().device, torch.device("tpu", self.rank))
        self.assertEqual(x.sum().full_tensor().item(), 28.0)

class TestWorkers(FSDPTestContinuous):
    def test_a_fails(self):
        self.assertEqual(get_devtype().type, "no such device")

    def test_b_comes_after(self):
        x = torch.full((2,), float(self.rank), device=get_devtype())
        dist.all_reduce(x)
        self.assertEqual(x.cpu(), torch.full((2,), 6.0))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_tiny.py").write_text(TESTS)
    return tmp_path


def run(checkout: Path, *args: str, file: str = "test_tiny.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytorch_tests.run", str(checkout), file]
    tests = Path(__file__).resolve().parents[1]
    env = {**os.environ, "PYTHONPATH": str(tests)}
    return subprocess.run(
        [*command, "--results", str(checkout / "results"), *args],
        env=env,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def outcomes(checkout: Path) -> dict[str, str]:
    lines = (checkout / "results" / "fused" / "test_tiny.jsonl").read_text().splitlines()
    found = {json.loads(line)["test"]: json.loads(line)["outcome"] for line in lines}
    return {test.split("::")[1].removesuffix("_tpu"): outcome for test, outcome in found.items()}


@pytest.mark.slow
def test_every_test_gets_an_outcome(checkout: Path) -> None:
    done = run(checkout, "--seconds", "15", "--jobs", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert outcomes(checkout) == {
        "test_adds": "passed",
        "test_fails_here": "failed",
        "test_fails_everywhere": "cpu too",
        "test_hangs": "hung",
        "test_is_skipped": "skipped",
        "test_kills_the_process": "crashed",
        "test_zz_comes_after": "passed",
    }
    assert "3 not right and not in the list" in done.stdout
    # What is known is not run again.
    again = run(checkout, "--seconds", "15", "--jobs", "1")
    assert "3 not right" in again.stdout
    assert len((checkout / "results" / "fused" / "test_tiny.jsonl").read_text().splitlines()) == 11


@pytest.mark.slow
def test_ranks_are_processes_with_a_device_each(checkout: Path) -> None:
    (checkout / "test" / "distributed").mkdir()
    (checkout / "test" / "distributed" / "test_ranks.py").write_text(RANKS)
    args = "--seconds", "150", "--jobs", "1", "--no-twins"
    done = run(checkout, *args, file="distributed/test_ranks")
    results = checkout / "results" / "fused" / "distributed.test_ranks.jsonl"
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert {line["test"].split("::")[1]: line["outcome"] for line in lines} == {
        "test_a_process_each": "passed",
        "test_a_fails": "failed",
        "test_b_comes_after": "passed",
    }, done.stdout + done.stderr


def test_a_folder_without_tests(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert "has no folder `test`" in done.stderr
    assert "--branch v2." in done.stderr


def test_a_name_that_no_file_has(checkout: Path) -> None:
    with pytest.raises(SystemExit, match=r"no file of .* is called 'test_big'"):
        chosen_files(checkout, ["test_big"])
    assert chosen_files(checkout, ["test/test_tiny.py"]) == ["test_tiny"]
    assert chosen_files(checkout, []) == []  # none of those written for any device is there


def test_the_list_of_expected_failures() -> None:
    expected = read_expected()
    patterns = [p for group in expected.groups.values() for p in group]
    assert len(patterns) == len(set(patterns))
    assert all("::" in pattern for pattern in patterns)
    assert not any("wrong" in reason for reason in expected.groups)
    assert not expected.reason_of("test_torch::TestNothing::test_of_this_name", "no reason")


def test_a_failure_is_expected_for_what_it_says(tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("reason: more\nfile::*::test_* if: works.*not listed\nfile::*::test_any\n")
    expected = read_expected(listed)
    assert expected.reason_of("file::Class::test_a", "it works\nbut is not listed") == "more"
    assert not expected.reason_of("file::Class::test_a", "it does not")
    assert expected.reason_of("file::Class::test_any", "it does not") == "more"


def test_names() -> None:
    assert {*GENERIC, *COMPILED} >= LARGE
    assert twin_of("GPUTests::test_abs_tpu") == "CpuTests::test_abs_cpu"
    assert twin_of("TestXPRIVATEUSE1::test_a_tpu_float32") == "TestXCPU::test_a_cpu_float32"
    text = "Traceback\nValueError: a\n\nTo execute this test, run\n  python Error.py"
    assert last_line(text) == "ValueError: a"
