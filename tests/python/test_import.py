"""Importing: `import torch` finds the device, starts nothing, costs little, survives breakage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_tpu

PACKAGE = Path(torch_tpu.__file__).parent
MARKER = b"torch_tpu was built for torch "


def test_import_torch_alone_brings_the_device(run_python):
    out = run_python(
        """
        import torch
        print(torch.tpu.is_available(), torch.tpu.is_initialized())
        print((torch.ones(3, device="tpu") * 2).sum().item())
        print(torch.get_device_module("tpu") is torch.tpu, torch.tpu.is_initialized())
        """
    )
    assert out.split("\n")[:3] == ["True False", "6.0", "True True"]


@pytest.mark.parametrize("autoload", ["0", "1"])
@pytest.mark.parametrize(
    "statement", ["import torch_tpu", "import torch_tpu.safetensors", "import torch_tpu, torch"]
)
def test_our_package_may_come_first(run_python, statement, autoload):
    code = f"{statement}\nimport torch\nprint(torch.zeros(2, device='tpu').device)"
    assert run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload) == "tpu:0\n"


def test_autoload_can_be_switched_off(run_python):
    code = "import torch, sys; print('torch_tpu' in sys.modules, hasattr(torch, 'tpu'))"
    assert run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "False False\n"


def test_questions_and_seeds_start_nothing(run_python):
    out = run_python(
        """
        import torch, torch_tpu
        torch.manual_seed(0)
        torch.tpu.manual_seed_all(1)
        torch.seed()
        torch.Generator("tpu")
        torch.tpu.is_available(), torch.tpu.device_count(), torch.tpu.current_device()
        torch.tpu.default_generators, torch.tpu.get_rng_state()
        torch.tpu.memory_allocated(), torch.tpu.memory_stats(), torch.tpu.memory_summary()
        torch.tpu.synchronize(), torch.tpu.empty_cache(), torch.tpu.reset_peak_memory_stats()
        torch.accelerator.is_available(), torch.accelerator.current_accelerator()
        torch_tpu.get_mode(), torch_tpu.stats(), torch_tpu.coverage()
        print(torch.tpu.is_initialized(), torch.tpu._initialized)
        """
    )
    assert out == "False False\n"


def test_import_brings_in_no_other_package(run_python):
    code = "import torch, sys; print(*sorted(sys.modules), sep='\\n')"
    without = set(run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").split())
    added = set(run_python(code).split()) - without
    packages = {name.split(".")[0] for name in added}
    assert packages <= {"torch", "torch_tpu"} | set(sys.stdlib_module_names)
    ours = {name for name in added if name.startswith("torch.")}
    assert all(name.startswith(("torch.tpu", "torch.backends.tpu")) for name in ours), ours


@pytest.mark.parametrize("end", ["value = 3", "raise RuntimeError"])
def test_a_module_that_imports_us_is_completed_after_it_has_run(run_python, tmp_path, end):
    """As a framework that is imported before torch is."""
    (tmp_path / "early.py").write_text(
        "import torch\n"
        "from torch_tpu._on_import import on_import\n"
        "on_import(__name__, lambda module: print('completed', module.value))\n"
        f"{end}\n"
    )
    out = run_python(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        try:
            import early
            print(early.value, type(early.__spec__).__name__)
        except RuntimeError:
            print("failed")
        """
    )
    assert out == ("completed 3\n3 ModuleSpec\n" if "value" in end else "failed\n")


@pytest.mark.slow
def test_import_costs_little(run_python):
    # CPU time of the process: other tests may be using the machine.
    code = "import time; import torch; print(time.process_time())"
    runs = [
        [float(run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)) for autoload in "01"]
        for _ in range(4)
    ]
    without, with_us = (min(column) for column in zip(*runs, strict=True))
    assert with_us - without < 0.5, f"{without:.2f} s without, {with_us:.2f} s with"


# Plugins and variables


def error_of_first_use(run_python, **env: str) -> str:
    """The message of the RuntimeError that the first tensor raises."""
    return run_python(
        """
        import warnings
        warnings.simplefilter("error")
        import torch
        for _ in range(2):  # the second use fails like the first
            try:
                torch.ones(2, device="tpu") + 1
            except (RuntimeError, ValueError) as error:
                message = str(error)
            else:
                raise SystemExit("no error")
        print(message)
        """,
        **env,
    )


def test_plugin_path_that_does_not_exist(run_python):
    message = error_of_first_use(run_python, TORCH_TPU_PLUGIN="/nowhere/plugin.so")
    assert "/nowhere/plugin.so" in message
    code = "import torch; print(torch.tpu.is_available(), torch.tpu.device_count())"
    assert run_python(code, TORCH_TPU_PLUGIN="/nowhere/plugin.so") == "False 0\n"


def test_plugin_path_that_is_no_library(run_python, tmp_path):
    path = tmp_path / "text.so"
    path.write_text("no library")
    assert str(path) in error_of_first_use(run_python, TORCH_TPU_PLUGIN=str(path))


def test_plugin_path_that_is_no_plugin(run_python):
    path = str(Path(torch.__file__).parent / "lib" / "libc10.so")
    message = error_of_first_use(run_python, TORCH_TPU_PLUGIN=path)
    assert path in message
    assert "GetPjrtApi" in message


@pytest.mark.parametrize(("plugin", "package"), [("tpu", "libtpu"), ("cuda", "pjrt")])
def test_plugin_that_is_not_installed(run_python, plugin, package):
    code = f"import torch; from torch_tpu import _C; print({plugin!r}, torch.tpu.is_available())"
    if run_python(code, TORCH_TPU_PLUGIN=plugin).split()[1] == "True":
        pytest.skip(f"the {plugin} plugin is installed")
    message = error_of_first_use(run_python, TORCH_TPU_PLUGIN=plugin)
    assert "pip install" in message
    assert package in message


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TORCH_TPU_PLUGIN", "gpu"),
        ("TORCH_TPU_MODE", "fast"),
        ("TORCH_TPU_CPU_DEVICES", "0"),
        ("TORCH_TPU_CPU_DEVICES", "many"),
        ("TORCH_TPU_MEMORY_LIMIT", "1T2"),
        ("TORCH_TPU_CACHE_SIZE", "-1"),
    ],
)
def test_value_that_is_not_allowed(run_python, variable, value):
    message = error_of_first_use(run_python, **{variable: value})
    assert f"[{variable}] expected " in message
    assert f"'{value}'" in message


# A native module that is missing or does not fit


@pytest.fixture
def copied_package(tmp_path: Path) -> Path:
    """A copy of the package without its native module; returns the folder to put on the path."""
    shutil.copytree(
        PACKAGE, tmp_path / "torch_tpu", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    # An editable install finds its own tree before it looks at the path.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if '_editable_' not in type(f).__module__]\n"
    )
    return tmp_path


def import_from(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(folder), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def check_torch_survives(folder: Path, *expected: str) -> None:
    """`import torch` warns; `import torch_tpu`, before or after it, raises."""
    done = import_from(folder, "import torch; print(torch.ones(2).sum().item())")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2.0\n"
    assert "RuntimeWarning: The device 'tpu' is not available" in done.stderr
    for code in ("import torch_tpu", "import torch; import torch_tpu"):
        done = import_from(folder, code)
        assert done.returncode != 0
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("ImportError: ")
        assert all(text in last for text in expected), last


def test_native_module_is_missing(copied_package):
    check_torch_survives(copied_package, "native module is not built", "make build")


def test_native_module_of_another_torch_that_does_not_load(copied_package):
    suffix = next(PACKAGE.glob("_C.*.so")).name
    (copied_package / "torch_tpu" / suffix).write_bytes(b"\x7fELF" + MARKER + b"2.5.1\0")
    check_torch_survives(copied_package, "built for torch 2.5.1", torch.__version__, "make build")


def test_native_module_of_another_torch_that_loads(copied_package):
    (copied_package / "torch_tpu" / "_C.py").write_text("_torch_version = '2.5.1'\n")
    check_torch_survives(copied_package, "built for torch 2.5.1", torch.__version__, "make build")


def test_native_module_that_is_damaged(copied_package):
    suffix = next(PACKAGE.glob("_C.*.so")).name
    (copied_package / "torch_tpu" / suffix).write_bytes(b"damaged")
    check_torch_survives(copied_package, "could not be loaded")


# What is public


def test_version_is_the_package_version():
    text = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{torch_tpu.__version__}"' in text


@pytest.mark.parametrize("module", [torch_tpu, torch.tpu])
def test_public_names_exist_and_are_documented(module):
    assert set(module.__all__) <= {*dir(module), "default_generators"}
    for name in module.__all__:
        assert getattr(getattr(module, name), "__doc__", None), name
    assert not [name for name in module.__all__ if name.startswith("_")]


def test_unknown_name():
    with pytest.raises(AttributeError, match=r"torch_tpu.*nothing_like_it"):
        torch_tpu.nothing_like_it  # noqa: B018
    with pytest.raises(AttributeError, match=r"torch\.tpu.*nothing_like_it"):
        torch.tpu.nothing_like_it  # noqa: B018
