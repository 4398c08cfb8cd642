"""Programs between processes: what is stored is used, and nothing that happens to the folder makes
a result wrong or stops a program."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

# Values, gradients, random numbers, indices, a resize, sizes that data decide, an op that CPU runs.
WORK = """
    import json, sys, warnings
    import torch, torch_tpu
    warnings.simplefilter("always")
    seen = []
    warnings.showwarning = lambda message, *rest: seen.append(str(message))
    torch.manual_seed(3)
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to("tpu").requires_grad_()
    w = torch.linspace(0, 1, 20).reshape(4, 5).to("tpu").requires_grad_()
    y = torch.nn.functional.gelu(x @ w).softmax(-1)
    (y * y).sum().backward()
    out = torch.empty(0, device="tpu")
    torch.add(x.detach(), 1, out=out)
    results = [y, x.grad, w.grad, out, x.detach()[x.detach() > 0], x.detach()[[2, 0]]]
    torch.manual_seed(5)
    torch.tpu.manual_seed(5)
    results.append(torch.rand(4, device="tpu"))
    print(json.dumps({
        "results": [r.detach().cpu().tolist() for r in results],
        "stats": torch_tpu.stats(),
        "dynamo": "torch._dynamo" in sys.modules,
        "warnings": [w for w in seen if "rogram" in w],
    }))
"""


def run(folder: Path | str, code: str = WORK, **env: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "TORCH_TPU_CACHE_DIR": str(folder), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    out = json.loads(done.stdout.splitlines()[-1])
    out["stderr"] = done.stderr
    return out


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A folder that one process has filled, and what that process computed."""
    folder = tmp_path_factory.mktemp("filled") / "cache"
    return folder, run(folder)


@pytest.fixture
def copy(filled: tuple[Path, dict], tmp_path: Path) -> tuple[Path, dict]:
    """The same to be damaged."""
    subprocess.run(["cp", "-a", str(filled[0]), str(tmp_path / "cache")], check=True)
    return tmp_path / "cache", filled[1]


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.program"))


def test_a_second_process_compiles_nothing(filled: tuple[Path, dict]) -> None:
    folder, first = filled
    assert first["stats"]["misses"] > 10
    assert first["stats"]["compiles"] > 0
    # Each op's record is stored, compiled alone or inside the program of the step.
    assert first["stats"]["disk"]["stores"] > first["stats"]["misses"]
    assert not first["warnings"]
    second = run(folder)
    assert second["results"] == first["results"]
    assert second["stats"]["compiles"] == 0
    # Every op, and beside them the one fused program that the first process compiled.
    assert second["stats"]["disk"]["loads"] == second["stats"]["misses"] + 1
    assert second["stats"]["disk"]["saved_seconds"] > 0
    assert not second["dynamo"]  # no Meta kernel ran, so nobody imported it
    assert not second["warnings"]


def test_more_devices_use_the_same_programs(filled: tuple[Path, dict]) -> None:
    folder, first = filled
    code = WORK.replace('"tpu")', '"tpu:2")').replace('device="tpu"', 'device="tpu:2"')
    code = code.replace("torch.tpu.manual_seed(5)", "torch.tpu.manual_seed_all(5)")
    other = run(folder, code, TORCH_TPU_CPU_DEVICES="3")
    assert other["results"] == first["results"]
    assert other["stats"]["compiles"] == 0


def test_settings_that_programs_depend_on(tmp_path: Path) -> None:
    code = """
        import json, torch, torch_tpu
        torch.set_float32_matmul_precision("{}")
        a = torch.ones(4, 4, device="tpu")
        (a @ a).sum().item()
        print(json.dumps({{"compiles": torch_tpu.stats()["compiles"]}}))
    """
    assert run(tmp_path / "c", code.format("highest"))["compiles"] > 0
    assert run(tmp_path / "c", code.format("medium"))["compiles"] > 0
    assert run(tmp_path / "c", code.format("highest"))["compiles"] == 0


def test_bad_numbers_raise_as_without_the_folder(tmp_path: Path) -> None:
    code = """
        import json, torch, torch_tpu
        x = torch.ones(3, device="tpu")
        try:
            x.cauchy_(0, SIGMA)
            error = ""
        except RuntimeError as problem:
            error = str(problem)
        print(json.dumps({"error": error}))
    """
    assert run(tmp_path / "c", code.replace("SIGMA", "2.0"))["error"] == ""
    assert "expects sigma > 0.0" in run(tmp_path / "c", code.replace("SIGMA", "-2.0"))["error"]


def test_a_resized_output_warns_in_each_process(tmp_path: Path) -> None:
    code = """
        import json, torch, torch_tpu, warnings
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.add(torch.ones(3, device="tpu"), 1, out=torch.ones(5, device="tpu"))
        print(json.dumps({"seen": [str(w.message)[:27] for w in seen]}))
    """
    for _ in range(2):
        assert run(tmp_path / "c", code)["seen"] == ["An output with one or more "]


def test_compiler_flags_are_part_of_the_place(tmp_path: Path) -> None:
    code = """
        import json, torch, torch_tpu
        (torch.ones(3, device="tpu") + 1).tolist()
        print(json.dumps({"compiles": torch_tpu.stats()["compiles"]}))
    """
    assert run(tmp_path / "c", code)["compiles"] > 0
    assert run(tmp_path / "c", code, XLA_FLAGS="--xla_cpu_enable_fast_math=false")["compiles"] > 0
    assert run(tmp_path / "c", code)["compiles"] == 0
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_damaged_entries_are_compiled_again(copy: tuple[Path, dict]) -> None:
    folder, first = copy
    files = entries(folder)
    rng = random.Random(0)
    for i, path in enumerate(files):
        data = bytearray(path.read_bytes())
        if i % 3 == 0:
            data = data[: rng.randrange(len(data))]
        elif i % 3 == 1:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        else:
            data = bytearray(rng.randbytes(len(data)))
        path.write_bytes(data)
    second = run(folder)
    assert second["results"] == first["results"]
    assert second["stats"]["disk"]["damaged"] == len(files)
    assert second["stats"]["compiles"] == first["stats"]["compiles"]
    assert len(second["warnings"]) == 1
    assert "damaged" in second["warnings"][0]
    assert str(folder) in second["warnings"][0]
    third = run(folder)  # mended
    assert third["results"] == first["results"]
    assert third["stats"]["compiles"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else(copy: tuple[Path, dict]) -> None:
    folder, first = copy
    os.chown(folder, 4242, 4242)
    other = run(folder)
    assert other["results"] == first["results"]
    assert other["stats"]["compiles"] == first["stats"]["compiles"]
    (warning,) = other["warnings"]
    assert str(folder) in warning
    assert "user 4242" in warning


def test_a_folder_that_others_may_write(copy: tuple[Path, dict]) -> None:
    folder, first = copy
    folder.chmod(0o777)
    other = run(folder)
    assert other["results"] == first["results"]
    assert other["stats"]["disk"]["loads"] == 0
    (warning,) = other["warnings"]
    assert f"chmod go-w {folder}" in warning


def refused(folder: Path, first: dict, count: int) -> str:
    """Runs with a folder of which `count` files must not be used; the one warning."""
    other = run(folder)
    assert other["results"] == first["results"]
    assert other["stats"]["disk"]["refused"] == count
    (warning,) = other["warnings"]
    assert str(folder) in warning
    again = run(folder)  # what was compiled instead has taken their places
    assert again["results"] == first["results"]
    assert again["stats"]["compiles"] == 0
    assert not again["warnings"]
    return warning


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_somebody_else(copy: tuple[Path, dict]) -> None:
    """In a folder of ours: it was another's before, or an archive was unpacked by root."""
    folder, first = copy
    for path in entries(folder):
        os.chown(path, 4242, 4242)
    assert "belongs to user 4242" in refused(folder, first, len(entries(folder)))


def test_files_that_others_may_write(copy: tuple[Path, dict]) -> None:
    folder, first = copy
    for path in entries(folder):
        path.chmod(0o666)
    assert "chmod go-w" in refused(folder, first, len(entries(folder)))


def test_pipes_and_links_in_place_of_files(copy: tuple[Path, dict]) -> None:
    folder, first = copy
    files = entries(folder)
    for i, path in enumerate(files):
        path.unlink()
        if i % 2 == 0:
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
    assert "machine code" in refused(folder, first, len(files))


def test_huge_files(copy: tuple[Path, dict]) -> None:
    folder, first = copy
    files = entries(folder)
    for i, path in enumerate(files):
        os.truncate(path, (6 << 30) + i if i % 2 else 1 << 40)
    other = run(folder)
    assert other["results"] == first["results"]
    assert other["stats"]["disk"]["damaged"] == len(files)
    assert len(other["warnings"]) == 1


def test_a_full_file_system(tmp_path: Path, filled: tuple[Path, dict]) -> None:
    """One of 64 KiB: the first programs fit."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a file system, and not everywhere")
    try:
        other = run(place / "c")
        expected = [torch.tensor(each) for each in filled[1]["results"]]
        torch.testing.assert_close([torch.tensor(each) for each in other["results"]], expected)
        assert other["stats"]["disk"]["failures"] == 1
        (warning,) = other["warnings"]
        assert "No space left on device" in warning
        assert not list((place / "c").glob("*/tmp-*"))
        again = run(place / "c")
        # Ops that are there run one by one, which rounds in another way.
        torch.testing.assert_close([torch.tensor(each) for each in again["results"]], expected)
        assert again["stats"]["disk"]["damaged"] == 0
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_folder_that_cannot_be_read(copy: tuple[Path, dict]) -> None:
    folder, first = copy
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    folder.chmod(0)
    try:
        other = run(folder)
    finally:
        folder.chmod(0o700)
    assert other["results"] == first["results"]
    assert len(other["warnings"]) == 1


def test_a_full_disk(tmp_path: Path, filled: tuple[Path, dict]) -> None:
    limit = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
    """
    other = run(tmp_path / "c", textwrap.dedent(limit) + textwrap.dedent(WORK))
    assert other["results"] == filled[1]["results"]
    assert other["stats"]["disk"]["failures"] == 1
    (warning,) = other["warnings"]
    assert "File too large" in warning
    assert not list((tmp_path / "c").glob("*/tmp-*"))


def test_no_folder_at_all(tmp_path: Path, filled: tuple[Path, dict]) -> None:
    (tmp_path / "file").write_text("in the way")
    other = run(tmp_path / "file")
    assert other["results"] == filled[1]["results"]
    (warning,) = other["warnings"]
    assert str(tmp_path / "file") in warning


def test_off_is_silent(filled: tuple[Path, dict]) -> None:
    for env in ({}, {"HOME": "", "XDG_CACHE_HOME": ""}):
        other = run("" if env else "off", **env)
        assert other["results"] == filled[1]["results"]
        assert other["stats"]["disk"]["misses"] == 0
        assert not other["warnings"]


def test_the_bound_holds(tmp_path: Path) -> None:
    code = """
        import json, torch, torch_tpu
        for n in range(1, 13):
            (torch.ones(n, device="tpu") * 2).tolist()
        print(json.dumps({"disk": torch_tpu.stats()["disk"]}))
    """
    out = run(tmp_path / "c", code, TORCH_TPU_CACHE_BYTES="32K")
    assert out["disk"]["evictions"] > 0
    assert sum(path.stat().st_size for path in entries(tmp_path / "c")) <= 32 << 10


def test_an_op_with_somebody_elses_decomposition_is_not_stored(tmp_path: Path) -> None:
    code = """
        import json, torch, torch_tpu
        from torch._decomp import register_decomposition
        from torch import library
        mine = library.Library("mine", "DEF")
        mine.define("scale(Tensor x) -> Tensor")
        register_decomposition(torch.ops.mine.scale.default)(lambda x: x * FACTOR)
        x = torch.ones(2, device="tpu")
        print(json.dumps({"y": torch.ops.mine.scale(x).tolist()}))
    """
    assert run(tmp_path / "c", code.replace("FACTOR", "2"))["y"] == [2, 2]
    assert run(tmp_path / "c", code.replace("FACTOR", "3"))["y"] == [3, 3]


# Processes that fill one folder while one of them is killed


FILL = """
    import torch, torch_tpu, sys
    x = torch.arange(24.0).to("tpu")
    print("ready", flush=True)
    for n in range(1, 25):
        for f in (torch.exp, torch.neg, lambda v: v + v, lambda v: v.sum(), torch.sigmoid):
            f(x[:n])
    print("done", flush=True)
"""


def fill_and_kill(folder: Path, delay: float, processes: int = 4) -> None:
    """Starts processes that fill the folder, kills the first after `delay` seconds, waits."""
    env = {**os.environ, "TORCH_TPU_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    code = textwrap.dedent(FILL)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(processes)
    ]
    victim = running[0]
    assert victim.stdout is not None
    victim.stdout.readline()  # "ready"
    time.sleep(delay)
    victim.send_signal(signal.SIGKILL)
    for process in running:
        _, errors = process.communicate(timeout=300)
        if process is not victim:
            assert process.returncode == 0, errors.decode()


@pytest.mark.slow
def test_a_killed_process_does_no_harm(tmp_path: Path, filled: tuple[Path, dict]) -> None:
    folder = tmp_path / "c"
    rng = random.Random(1)
    for _ in range(2):
        fill_and_kill(folder, rng.uniform(0, 1.5))
    other = run(folder)
    assert other["results"] == filled[1]["results"]
    assert other["stats"]["disk"]["damaged"] == 0
    check = textwrap.dedent(FILL) + "import json; print(json.dumps(torch_tpu.stats()))"
    stats = run(folder, check)
    assert stats["compiles"] == 0
    assert stats["disk"]["damaged"] == 0
