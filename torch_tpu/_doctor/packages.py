"""Checks of what is installed: Python, torch, the native module, the plugins."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from torch_tpu import _native_file
from torch_tpu._doctor.finding import Finding, Places

TORCH_FROM, TORCH_BELOW = (2, 11), (2, 14)
_TORCH_RANGE = "2.11 to 2.13"
_TORCH_FIX = "pip install 'torch>=2.11,<2.14'"

# name -> package to install, and the library within site-packages; as csrc/pjrt/plugin_resolve.cpp.
PLUGINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cpu": ("xla-cpu-pjrt", ("xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",)),
    "cuda": (
        "jax-cuda13-pjrt",
        tuple(
            f"{group}/xla_cuda{version}/xla_cuda_plugin.so"
            for version in (13, 12)
            for group in ("jax_plugins", "xla_plugins")
        ),
    ),
    "tpu": ("libtpu", ("libtpu/libtpu.so",)),
}


def distribution(name: str) -> Distribution | None:
    """The installed package, from its metadata alone."""
    return next(iter(distributions(name=name)), None)


def find_plugin(name: str, places: Places) -> Path | None:
    """The library of a known plugin, if it is installed."""
    files = [site / path for path in PLUGINS[name][1] for site in places.site]
    return next((file for file in files if os.path.isfile(file)), None)  # False where forbidden


def python(_: Places) -> Iterator[Finding]:
    """The interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", f"{version}, {sys.executable}")


def torch(_: Places) -> Iterator[Finding]:
    """PyTorch's version."""
    found = distribution("torch")
    if found is None:
        yield Finding("torch", "problem", "torch is not installed", _TORCH_FIX)
        return
    version = found.version
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if not TORCH_FROM <= numbers < TORCH_BELOW:
        message = f"torch {version} is not supported; torchtpu works with {_TORCH_RANGE}"
        yield Finding("torch", "problem", message, _TORCH_FIX, {"version": version})
    else:
        details = {"version": version}
        yield Finding("torch", "ok", f"{version} (supported: {_TORCH_RANGE})", "", details)


# Another package whose modules are called torch_tpu, too.
_NAMESAKE = "torch-tpu"


def namesake(_: Places) -> Iterator[Finding]:
    """Google's torch-tpu, which installs into the same folder."""
    other = distribution(_NAMESAKE)
    if other is None:
        return
    message = (
        f"{_NAMESAKE} {other.version} is installed, too, and both are torch_tpu in Python: the one "
        f"installed last has overwritten files of the other"
    )
    fix = (
        f"pip uninstall {_NAMESAKE} torchtpu, then install the one you want; for both, a virtual "
        f"environment each (docs/from_google_torch_tpu.md)"
    )
    yield Finding("namesake", "problem", message, fix, {"version": other.version})


def native(_: Places) -> Iterator[Finding]:
    """The native module's file, and what it was built for. The self test loads it."""
    file = _native_file.library()
    if file is None:
        yield Finding("native", "problem", "torch_tpu's native module is not built", _fix_native())
        return
    built = _native_file.built_for(file)
    details = {"file": str(file), "built_for": built}
    found = distribution("torch")
    if not built:
        message = f"{file} does not say which torch it was built for: it is damaged or foreign"
        yield Finding("native", "problem", message, _fix_native(), details)
    elif found is not None and _native_file.minor(built) != _native_file.minor(found.version):
        message = f"built for torch {built}, but torch {found.version} is installed"
        wanted = ".".join(_native_file.minor(built))
        fix = f"{_fix_native()}; or pip install 'torch=={wanted}.*'"
        yield Finding("native", "problem", message, fix, details)
    else:
        yield Finding("native", "ok", f"built for torch {built}", "", details)


def _fix_native() -> str:
    return _native_file.REBUILD[0].lower() + _native_file.REBUILD[1:].replace("`", "")


def plugins(places: Places) -> Iterator[Finding]:
    """Which plugins there are, and whether the chosen one is."""
    chosen = places.environ.get("TORCH_TPU_PLUGIN") or "auto"
    for name, (package, _) in PLUGINS.items():
        file = find_plugin(name, places)
        if file is not None:
            installed = distribution(_package_of(name, file))
            version = installed.version if installed else "unknown version"
            details = {"file": str(file), "version": version}
            yield Finding(f"plugin {name}", "ok", f"{version}, {file}", "", details)
        elif name == chosen or (name == "cpu" and chosen == "auto"):
            why = "TORCH_TPU_PLUGIN asks for it" if chosen == name else "nothing runs without one"
            message = f"the '{name}' plugin is not installed, and {why}"
            yield Finding(f"plugin {name}", "problem", message, f"pip install {package}")
    is_path = "/" in chosen or chosen.endswith(".so")
    if is_path and "/" in chosen and not Path(chosen).is_file():
        message = f"TORCH_TPU_PLUGIN={chosen}: there is no such file"
        fix = "unset TORCH_TPU_PLUGIN, or set it to auto, cpu, cuda, tpu or an existing library"
        yield Finding("plugin", "problem", message, fix)


def _package_of(name: str, file: Path) -> str:
    if name != "cuda":
        return PLUGINS[name][0]
    group, folder = file.parts[-3:-1]
    return f"{'jax' if group == 'jax_plugins' else 'xla'}-{folder.removeprefix('xla_')}-pjrt"


def cuda(places: Places) -> Iterator[Finding]:
    """The driver, where the CUDA plugin is installed or asked for."""
    chosen = places.environ.get("TORCH_TPU_PLUGIN") or "auto"
    asked = chosen == "cuda" or "cuda" in Path(chosen).name
    installed = find_plugin("cuda", places) is not None
    if not asked and not installed:
        return
    missing = []
    if not places.nvidia_driver.is_file():
        missing.append(f"the kernel driver is not loaded (no {places.nvidia_driver})")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        missing.append("libcuda.so.1 is not on the loader's path")
    if not missing:
        text = places.nvidia_driver.read_text(encoding="utf-8", errors="replace")
        yield Finding("cuda driver", "ok", text.partition("\n")[0].strip())
        return
    has = "is installed without" if installed else "needs"
    message = f"the CUDA plugin {has} a driver: " + "; ".join(missing)
    fix = (
        "install NVIDIA's driver on the host (nvidia-smi must work); in a container start it with "
        "--gpus all; or use another plugin: TORCH_TPU_PLUGIN=cpu"
    )
    yield Finding("cuda driver", "problem" if asked else "warning", message, fix)
