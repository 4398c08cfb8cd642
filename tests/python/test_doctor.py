"""`torch-tpu doctor` on planted faults: real files, owners and permissions, in a process of its
own. Each fault must be found, named, and come with its fix."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torch_tpu
from torch_tpu._doctor.run import CHECKS

PACKAGE = Path(torch_tpu.__file__).parent
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="plants files of other users")

Report = dict[str, Any]


def real_site() -> Path:
    """Where torch is installed."""
    import torch

    return Path(torch.__file__).parents[1]


def doctor(
    code: str = "",
    user: int | None = None,
    path: list[Path] = [],  # noqa: B006, only read
    self_test: bool = False,
    environment: bool = False,
    **env: str,
) -> Report:
    """The report as JSON. `code` may change `places`. As another `user`, who may not be able to
    start this Python, only what looks at the machine is checked."""
    program = f"""
import json, os, sys
sys.argv[0] = "torch-tpu"
rest = [p for p in sys.path if "site-packages" not in p]
sys.path[:] = {[str(p) for p in path]!r} + rest if {bool(path)} else sys.path
from pathlib import Path
from dataclasses import asdict
from torch_tpu._doctor import Places, diagnose, run
user = {user!r}
if not {self_test or environment}:
    run.CHECKS = tuple(c for c in run.CHECKS if c[0] != "environment")
if user is not None:
    import encodings.ascii, tempfile, random
    run.CHECKS = tuple(c for c in run.CHECKS if c[0] in ("chips", "cache", "temporary files"))
    os.setgroups([]); os.setgid(user); os.setuid(user)
places = Places(timeout=100)
{code}
assert "torch" not in sys.modules
print(json.dumps([asdict(f) for f in diagnose(places, self_test={self_test})]))
"""
    done = subprocess.run(
        [sys.executable, *(["-S"] if path else []), "-c", program],
        env={**os.environ, "PYTHONPATH": ":".join(map(str, [*path, PACKAGE.parent])), **env},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {"findings": json.loads(done.stdout)}


def the(report: Report, check: str, status: str = "problem") -> dict[str, str]:
    """The one finding of this check and status."""
    found = [f for f in report["findings"] if f["check"] == check and f["status"] == status]
    assert len(found) == 1, report["findings"]
    return dict(found[0])


def only_problem(report: Report, check: str) -> dict[str, str]:
    """It is found, and nothing else is blamed."""
    assert {f["check"] for f in report["findings"] if f["status"] == "problem"} == {check}
    return the(report, check)


@pytest.fixture
def farm(tmp_path: Path) -> Path:
    """A site-packages folder of links, from which a test can take something away."""
    folder = tmp_path / "farm" / "site-packages"
    folder.mkdir(parents=True)
    purelib = Path(sysconfig.get_paths()["purelib"])
    for source in dict.fromkeys([real_site(), purelib]):
        for entry in source.iterdir():
            if not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    if not (folder / "torch_tpu").exists():
        (folder / "torch_tpu").symlink_to(PACKAGE)
    # An editable install puts a finder of its own before the path, in child processes too.
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in type(f).__module__]\n"
    )
    for name in ("jax_plugins", "libtpu"):
        (folder / name).unlink(missing_ok=True)
    return folder


def own_copy(farm: Path, *without: str) -> Path:
    """Puts a copy of the package into the farm, to be damaged; gives its folder."""
    (farm / "torch_tpu").unlink()
    ignored = shutil.ignore_patterns("__pycache__", *without)
    shutil.copytree(PACKAGE, farm / "torch_tpu", ignore=ignored)
    return farm / "torch_tpu"


def spoil_start(farm: Path, line: str) -> None:
    """`import torch_tpu` does `line` first, but not in the doctor's own process."""
    init = own_copy(farm) / "__init__.py"
    mark = "from __future__ import annotations\n"
    spoiled = f"{mark}import os, sys, time\nif not sys.argv[0].endswith('torch-tpu'): {line}\n"
    init.write_text(init.read_text().replace(mark, spoiled, 1))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder with one program; everybody may come up to it."""
    folder = tmp_path / "cache"
    home = folder / ("cpu-" + "0" * 32)
    home.mkdir(parents=True)
    (home / "a.program").write_bytes(b"x")
    folder.chmod(0o700)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    return folder


def chip(tmp_path: Path, mode: int = 0o666) -> str:
    """A TPU as the system shows it: on the bus, and as a file. Gives code that shows it."""
    device = tmp_path / "pci" / "0000:00:05.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1ae0\n")
    (device / "class").write_text("0x120000\n")
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "accel0").write_bytes(b"")
    (dev / "accel0").chmod(mode)
    return f"places.dev, places.pci = Path({str(dev)!r}), Path({str(tmp_path / 'pci')!r})"


# Health


def test_a_healthy_installation() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch_tpu", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert report["healthy"] is True
    assert report["problems"] == 0
    details = the(report, "self test", "ok")["details"]
    assert details["devices"] >= 1
    assert details["api_version"]
    assert the(report, "torch", "ok")["details"]["version"].startswith("2.")


def test_every_check_is_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_tpu._doctor import run

    def broken(_: object) -> Iterator[Any]:
        raise ZeroDivisionError("planted")
        yield

    monkeypatch.setattr(run, "CHECKS", (("first", broken), *CHECKS[:2]))
    found = list(run.diagnose())
    assert found[0].status == "problem"
    assert "planted" in found[0].message
    assert [f.check for f in found] == ["first", "python", "torch"]


# The ten faults


def test_no_plugin(farm: Path) -> None:
    (farm / "xla_plugins").unlink()
    report = doctor(path=[farm], self_test=True)
    found = the(report, "plugin cpu")
    assert "not installed" in found["message"]
    assert found["fix"] == "pip install xla-cpu-pjrt"
    assert "xla-cpu-pjrt" in the(report, "self test")["message"]


def test_wrong_version_of_the_native_module(farm: Path, tmp_path: Path) -> None:
    """Built for another torch: the library says so in its bytes."""
    (library,) = own_copy(farm).glob("_C.*.so")
    data = library.read_bytes()
    start = data.index(b"torch_tpu was built for torch ") + len(b"torch_tpu was built for torch ")
    library.write_bytes(data[:start] + b"2.99" + data[start + 4 :])
    report = doctor(path=[farm], self_test=True)
    found = the(report, "native")
    assert "built for torch 2.99" in found["message"]
    assert "pip install" in found["fix"]
    assert "built for torch 2.99" in the(report, "self test")["message"]


def test_a_broken_native_module(farm: Path) -> None:
    """Not one of the ten, but the case in which nothing of ours can be imported."""
    (library,) = own_copy(farm).glob("_C.*.so")
    library.write_bytes(b"no library")
    report = doctor(path=[farm], self_test=True)
    assert "damaged or foreign" in the(report, "native")["message"]
    assert the(report, "self test")
    assert "does not load" in the(report, "environment", "warning")["message"]


@as_root
def test_unreadable_cache(cache: Path) -> None:
    os.chown(cache, NOBODY, NOBODY)
    cache.chmod(0o000)
    report = doctor(user=NOBODY, TORCH_TPU_CACHE_DIR=str(cache), HOME="/")
    found = only_problem(report, "cache")
    assert "cannot be read and written" in found["message"]
    assert f"chmod -R u+rwX {cache}" in found["fix"]


@as_root
def test_unreadable_program(cache: Path) -> None:
    for path in (cache, *cache.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    next(cache.rglob("*.program")).chmod(0)
    report = doctor(user=NOBODY, TORCH_TPU_CACHE_DIR=str(cache), HOME="/")
    assert "a.program" in only_problem(report, "cache")["message"]


@as_root
def test_foreign_owned_cache(cache: Path) -> None:
    os.chown(cache, NOBODY, NOBODY)
    found = only_problem(doctor(TORCH_TPU_CACHE_DIR=str(cache)), "cache")
    assert "belongs to nobody" in found["message"]
    assert f"chown -R root {cache}" in found["fix"]


def test_cache_that_others_may_write(cache: Path) -> None:
    cache.chmod(0o777)
    found = only_problem(doctor(TORCH_TPU_CACHE_DIR=str(cache)), "cache")
    assert f"chmod go-w {cache}" in found["fix"]


def test_missing_libtpu(tmp_path: Path, farm: Path) -> None:
    found = only_problem(doctor(chip(tmp_path), path=[farm]), "libtpu")
    assert "libtpu is not installed" in found["message"]
    assert "pip install libtpu" in found["fix"]


@as_root
def test_no_permission_on_a_chip(tmp_path: Path, cache: Path, farm: Path) -> None:
    (farm / "libtpu").mkdir()
    (farm / "libtpu" / "libtpu.so").write_bytes(b"")
    code = chip(tmp_path, mode=0o600)
    report = doctor(code, user=NOBODY, path=[farm], TORCH_TPU_CACHE_DIR="off", HOME="/")
    found = only_problem(report, "chips")
    assert "accel0" in found["message"]
    assert "-rw-------" in found["message"]
    assert "chmod a+rw" in found["fix"]


def test_cuda_plugin_without_driver(farm: Path, tmp_path: Path) -> None:
    plugin = farm / "jax_plugins" / "xla_cuda13"
    plugin.mkdir(parents=True)
    (plugin / "xla_cuda_plugin.so").write_bytes(b"")
    code = f"places.nvidia_driver = Path({str(tmp_path / 'none')!r})"
    found = only_problem(doctor(code, path=[farm], TORCH_TPU_PLUGIN="cuda"), "cuda driver")
    assert "kernel driver is not loaded" in found["message"]
    assert "nvidia-smi" in found["fix"]
    assert "TORCH_TPU_PLUGIN=cpu" in found["fix"]
    # Installed, but nobody asks for it: that is no reason to be ill.
    assert the(doctor(code, path=[farm]), "cuda driver", "warning")


def test_unsupported_torch(tmp_path: Path, farm: Path) -> None:
    for info in farm.glob("torch-*.dist-info"):
        info.unlink()
    old = farm / "torch-2.9.1.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    report = doctor(path=[farm])
    found = the(report, "torch")
    assert "2.9.1 is not supported" in found["message"]
    assert found["fix"] == "pip install 'torch>=2.11,<2.14'"


def test_the_other_torch_tpu(farm: Path) -> None:
    """Google's package of nearly the same name, by its metadata alone."""
    info = farm / "torch_tpu-0.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_tpu\nVersion: 0.2.0\n")
    found = only_problem(doctor(path=[farm]), "namesake")
    assert "torch-tpu 0.2.0 is installed, too" in found["message"]
    assert "pip uninstall torch-tpu torchtpu" in found["fix"]


@pytest.mark.parametrize(
    "row",
    [row for row in torch_tpu._C._env_table() if row["type"] in ("choice", "int", "bool", "bytes")],
    ids=lambda r: r["name"],
)
def test_each_variable_is_checked(row: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(row["name"], "nonsense!")
    assert any(text.startswith(f"[{row['name']}]") for text in torch_tpu._C._env_problems())


def test_broken_environment_value() -> None:
    report = doctor(environment=True, TORCH_TPU_MODE="fast", TORCH_TPU_CPU_DEVICE="4")
    found = only_problem(report, "environment")
    assert "[TORCH_TPU_MODE] expected debug, strict or fused, got 'fast'" in found["message"]
    assert "unset TORCH_TPU_MODE" in found["fix"]
    typo = the(report, "environment", "warning")
    assert "no variable TORCH_TPU_CPU_DEVICE" in typo["message"]
    assert "TORCH_TPU_CPU_DEVICES" in typo["fix"]


def test_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        found = only_problem(doctor(TORCH_TPU_CACHE_DIR=str(folder)), "cache")
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert "is full" in found["message"]
    assert "No space left on device" in found["message"]
    assert "free some space" in found["fix"]


def test_nearly_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where nothing can be mounted: the system's own call says how much is left."""
    from torch_tpu._doctor import Places, machine

    real = os.statvfs(tmp_path)
    fields = list(real)
    fields[4] = 1  # f_bavail
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    places = Places(environ={"TORCH_TPU_CACHE_DIR": str(tmp_path / "new")})
    (found,) = machine.cache(places)
    assert found.status == "problem"
    assert "is full (0 MiB free)" in found.message


# The self test


def test_a_device_that_hangs_is_ended(farm: Path) -> None:
    spoil_start(farm, "time.sleep(600)")
    report = doctor("places.timeout = 3", path=[farm], self_test=True)
    assert "no answer within 3 s" in the(report, "self test")["message"]


def test_a_crash_is_named(farm: Path) -> None:
    spoil_start(farm, "os.kill(os.getpid(), 11)")
    report = doctor(path=[farm], self_test=True)
    assert "ended by SIGSEGV" in the(report, "self test")["message"]


def test_commands_say_what_to_do_where_nothing_loads(farm: Path) -> None:
    own_copy(farm, "*.so")
    program = (
        f"import sys; sys.path[:0] = [{str(farm)!r}]; sys.argv[0] = 'torch-tpu'\n"
        "from torch_tpu.cli import main; sys.exit(main(['cache', 'info']))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "PYTHONPATH": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert "native module is not built" in done.stderr
    assert "torch-tpu doctor" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--timeout", "0"], ["--timeout", "x"], ["more"]])
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from torch_tpu.cli import main

    with pytest.raises(SystemExit) as stop:
        main(["doctor", *words])
    assert stop.value.code == 2
    assert "usage: torch-tpu" in capsys.readouterr().err
