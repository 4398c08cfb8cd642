"""Who takes part: the interpreter and environment of each contestant, and who is left out and why.

TORCH_TPU_BENCH_PEER_PYTHON names an interpreter with the packages measured beside this project.
JAX is taken from there, or else from the interpreter that runs the benchmark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

PEER_PYTHON = "TORCH_TPU_BENCH_PEER_PYTHON"
PEER_INSTALL = (
    "python -m venv PEER && PEER/bin/pip install torch==2.13.0 torch-tpu xla-cpu-pjrt jax, "
    f"then set {PEER_PYTHON}=PEER/bin/python"
)
# Taken only when asked for. One thread of PyTorch is steadier where others use the machine too: its
# threads wait for each other by spinning.
OPTIONAL = ("torch-1thread", "torch-inductor", "ours-debug", "peer-debug")


@dataclass(frozen=True)
class Contestant:
    """How to start one. `kind`, `device` and `mode` are worker.py's arguments."""

    name: str
    kind: str
    device: str
    mode: str
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether this is the project itself rather than something to compare it with."""
        return self.kind == "ours"


@dataclass(frozen=True)
class Installed:
    """What an interpreter has: modules found, and the library of its XLA:CPU plugin."""

    modules: frozenset[str]
    plugin: str | None


_PROBE = """
import importlib.util, json, pathlib
names = [n for n in ("jax", "torch", "torch_tpu") if importlib.util.find_spec(n)]
plugin = None
if importlib.util.find_spec("xla_plugins"):
    for folder in importlib.util.find_spec("xla_plugins").submodule_search_locations or ():
        for library in sorted(pathlib.Path(folder).glob("xla_cpu_pjrt/*.so")):
            plugin = str(library)
print(json.dumps([names, plugin]))
"""


def probe(python: str) -> Installed:
    """Asks an interpreter what it has. -I keeps the repository off its path."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _PROBE], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{python} does not run: {error}") from None
    modules, plugin = json.loads(done.stdout)
    return Installed(frozenset(modules), plugin)


def _peers(python: str, plugin: str) -> list[Contestant]:
    env = {
        "PYTHONPATH": "",  # nothing of ours: the package has our import name
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TPU_LIBRARY_PATH": plugin,
        "TPU_SKIP_MDS_QUERY": "1",
    }
    modes = ("strict", "fused", "debug")
    return [Contestant(f"peer-{mode}", "peer", "tpu", mode, python, env) for mode in modes]


def _jax(python: str, installed: Installed, reference: str) -> list[Contestant]:
    env = {
        "PYTHONPATH": "",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # the GPU is shared with the others
        "JAX_PLATFORMS": reference,
    }
    if reference == "cpu" and installed.plugin is not None:  # the very plugin we run on
        env["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"xcpu:{installed.plugin}"
        env["JAX_PLATFORMS"] = "xcpu"
    return [
        Contestant("jax-jit", "jax", reference, "jit", python, env),
        Contestant("jax-ops", "jax", reference, "ops", python, env),
    ]


def find(reference: str) -> tuple[list[Contestant], list[str]]:
    """All contestants for a reference device ("cpu" or "cuda"), and a line for each left out."""
    left_out: list[str] = []
    autoload_off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    found = [Contestant(f"torch-{reference}", "torch", reference, "-", env=autoload_off)]
    if reference == "cpu":
        one = {**autoload_off, "OMP_NUM_THREADS": "1"}
        found.append(Contestant("torch-1thread", "torch", "cpu", "-", env=one))
    found.append(Contestant("torch-inductor", "torch", reference, "compile", env=autoload_off))
    for mode in ("strict", "fused", "debug", "compile"):
        eager = "fused" if mode == "compile" else mode
        env = {"TORCH_TPU_MODE": eager, "TORCH_TPU_PLUGIN": reference}
        found.append(Contestant(f"ours-{mode}", "ours", "tpu", mode, env=env))

    peer_python = os.environ.get(PEER_PYTHON)
    installed = probe(peer_python) if peer_python else Installed(frozenset(), None)
    if reference != "cpu":
        left_out.append("peer: torch-tpu from PyPI can be pointed at XLA:CPU only")
    elif not peer_python:
        left_out.append(f"peer: {PEER_PYTHON} is not set; {PEER_INSTALL}")
    elif "torch_tpu" not in installed.modules or installed.plugin is None:
        left_out.append(f"peer: no torch-tpu or no xla-cpu-pjrt in {peer_python}; {PEER_INSTALL}")
    else:
        found += _peers(peer_python, installed.plugin)

    candidates = [(peer_python, installed)] if peer_python else []
    candidates.append((sys.executable, probe(sys.executable)))
    for python, has in candidates:
        if "jax" in has.modules:
            found += _jax(python, has, reference)
            break
    else:
        left_out.append(f"jax: in no interpreter known here; {PEER_INSTALL}")
    return found, left_out
