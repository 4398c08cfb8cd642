"""The package as users and CI see it: metadata, entry point, build file, layering check."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "tools" / "check_layering.py"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def check_layering(root: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(CHECK), str(root)], capture_output=True, text=True, check=False
    )
    assert not done.stderr
    return done.returncode, done.stdout


# Metadata


def test_project_metadata(project: dict[str, Any]) -> None:
    metadata = project["project"]
    assert metadata["name"] == "torchtpu"
    assert metadata["license"] == "Apache-2.0"
    assert metadata["requires-python"] == ">=3.11"
    assert "torch>=2.11,<2.14" in metadata["dependencies"]
    assert metadata["entry-points"]["torch.backends"] == {"torch_tpu": "torch_tpu:_autoload"}
    assert metadata["scripts"] == {"torch-tpu": "torch_tpu.cli:main"}
    assert {"cuda", "jax", "tpu"} <= set(metadata["optional-dependencies"])


def test_build_never_fetches_torch(project: dict[str, Any]) -> None:
    names = [re.split(r"[^\w-]", r)[0] for r in project["build-system"]["requires"]]
    assert "torch" not in names


def test_requirements_are_pinned() -> None:
    lines = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8").splitlines()
    packages = [line for line in lines if line and not line.startswith("#")]
    assert packages
    assert [line for line in packages if not re.fullmatch(r"[a-z0-9-]+==[\w.]+", line)] == []
    assert "torch==2.13.0" in packages


@pytest.mark.skipif(
    importlib.util.find_spec("scikit_build_core") is None, reason="needs scikit-build-core"
)
def test_wheel_metadata(tmp_path: Path) -> None:
    """What the build backend would write into the wheel, without compiling."""
    code = (
        "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as p;"
        "p(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    (info,) = tmp_path.glob("torchtpu-*.dist-info")
    distribution = importlib.metadata.Distribution.at(info)
    (entry,) = distribution.entry_points.select(group="torch.backends")
    assert (entry.name, entry.value) == ("torch_tpu", "torch_tpu:_autoload")
    assert distribution.metadata["Name"] == "torchtpu"
    assert distribution.metadata["License-Expression"] == "Apache-2.0"
    assert distribution.metadata["License-File"] == "LICENSE"


def test_import_torch_alone_loads_the_backend() -> None:
    entries = importlib.metadata.entry_points(group="torch.backends", name="torch_tpu")
    if not entries:
        pytest.skip("torchtpu is not installed here (a plain CMake build): run `make build`")
    code = "import sys, torch; sys.exit('torch_tpu' not in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Repository


def test_cmake_is_short() -> None:
    lines = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 150


def test_every_make_target_is_described() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert phony is not None
    assert sorted(re.findall(r"^  make (\S+)", done.stdout, re.M)) == sorted(phony[1].split())


# The layering check


def test_layering_accepts_this_tree() -> None:
    code, output = check_layering(ROOT)
    assert code == 0, output


def test_layering_accepts_what_is_allowed(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "csrc/pjrt/a.h": '#include <pjrt_c_api.h>\n#include "csrc/base/error.h"\n',
            "csrc/ops/a.cpp": "#include <ATen/core/Tensor.h>\n"
            '#include "csrc/stablehlo/builder.h"\n// #include "csrc/pjrt/a.h"\n',
            "csrc/bindings/a.cpp": "#include <torch/csrc/utils/pybind.h>\n"
            '#include "csrc/dispatch/a.h"\n',
            "tests/cpp/pjrt/a_test.cpp": '#include "csrc/pjrt/a.h"\n#include <gtest/gtest.h>\n',
        },
    )
    assert check_layering(tmp_path) == (0, "check_layering: 0 errors, 0 warnings\n")


@pytest.mark.parametrize(
    ("path", "include", "message"),
    [
        ("csrc/ops/a.cpp", '"csrc/pjrt/client.h"', "ops must not include pjrt"),
        ("csrc/base/a.h", '"csrc/pjrt/client.h"', "base must not include pjrt"),
        ("csrc/stablehlo/a.h", '"csrc/pjrt/client.h"', "stablehlo must not include pjrt"),
        ("csrc/trace/a.h", '"csrc/dispatch/a.h"', "trace must not include dispatch"),
        ("csrc/device/a.h", '"../pjrt/client.h"', "climbs out of its folder"),
        ("csrc/device/a.h", '"csrc/elsewhere/a.h"', "is no layer"),
        ("csrc/pjrt/a.h", "<c10/util/Exception.h>", "pjrt must not include torch"),
        ("csrc/stablehlo/a.h", "<ATen/ATen.h>", "stablehlo must not include torch"),
        ("csrc/base/a.h", "<torch/library.h>", "base must not include torch"),
        ("csrc/cache/a.h", "<ATen/ATen.h>", "cache must not include ATen"),
        ("csrc/ops/a.cpp", '"pjrt_c_api.h"', "ops must not include PJRT"),
        ("csrc/dispatch/a.cpp", "<torch/csrc/utils/pybind.h>", "dispatch must not include Python"),
        ("csrc/device/a.cpp", "<torch/extension.h>", "device must not include Python"),
        ("csrc/trace/a.cpp", "<Python.h>", "trace must not include Python"),
        ("tests/cpp/pjrt/a_test.cpp", '"csrc/ops/table.h"', "pjrt must not include ops"),
        ("csrc/elsewhere/a.h", "<vector>", "not in one of the layers"),
    ],
)
def test_layering_catches(tmp_path: Path, path: str, include: str, message: str) -> None:
    write(tmp_path, {path: f"// A comment.\n#  include {include}\n"})
    code, output = check_layering(tmp_path)
    assert code == 1
    assert message in output
    assert output.startswith(f"{path}:{1 if 'layers' in message else 2}: error: ")


@pytest.mark.parametrize(
    ("lines", "code", "message"),
    [
        (400, 0, ""),
        (401, 0, "torch_tpu/a.py:401: warning: 401 lines, more than 400"),
        (800, 0, "warning"),
        (801, 1, "torch_tpu/a.py:801: error: 801 lines, more than 800"),
    ],
)
def test_long_files(tmp_path: Path, lines: int, code: int, message: str) -> None:
    write(tmp_path, {"torch_tpu/a.py": "x = 1\n" * lines})
    status, output = check_layering(tmp_path)
    assert status == code
    assert message in output
    assert message or output == "check_layering: 0 errors, 0 warnings\n"
