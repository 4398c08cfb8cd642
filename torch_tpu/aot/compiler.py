"""The TPU compiler in a child process: text in, figures and dumps out. libtpu may end its process
on input it does not expect; here that is an error like any other."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_tpu import _C
from torch_tpu.aot.process import Child
from torch_tpu.aot.topologies import AotError, Topology

_ROOT = Path(__file__).resolve().parents[2]
# The compiler's words for a kernel that is too large for a memory of the chip's own.
_SMALL_MEMORY = re.compile(r"\bspace[ =](vmem|smem)\b")
DEFAULT_TIMEOUT = 1800.0


class CompilerCrashError(AotError):
    """The compiler's process was ended by a signal."""


class CompilerTimeoutError(AotError):
    """The compiler was stopped."""


class DoesNotFitError(AotError):
    """The program needs more HBM than a device has; `text` is what the compiler says, `live` what
    would be alive at the peak, `optimized` the module with that."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text
        self.live = ""
        self.optimized = b""
        self.seconds = 0.0


@dataclass
class Compiled:
    """What the compiler said of a program."""

    figures: dict[str, Any]
    optimized: bytes
    seconds: float
    compiler: str
    kinds: list[str]
    profile: str = ""  # the use of slots, as text
    live: str = ""  # what is alive when most is
    serialized: bytes | None = field(default=None, repr=False)
    fingerprint: list[tuple[str, str]] = field(default_factory=list, repr=False)


def require_libtpu(folders: list[str] | None = None) -> None:
    """`AotError` unless libtpu is installed."""
    if importlib.util.find_spec("libtpu") is not None:
        return
    for folder in folders or []:
        if (Path(folder) / "libtpu" / "libtpu.so").is_file():
            return
    raise AotError(
        "libtpu, the TPU compiler, is not installed. Get it with `pip install torchtpu[tpu]` "
        "(or `pip install libtpu`); no TPU is needed. `torch_tpu.lint` works without it."
    )


def require_no_options() -> None:
    """`AotError` where options of this process are set: the compiler's process would not know of
    them, and the figures be those of another program."""
    options = _C._compiler_options()
    if options:
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise AotError(
            f"programs are not compiled ahead of time with the options of this process ({given}). "
            "Leave custom_compiler_options and allow_excess_precision before, and give options to "
            "the TPU compiler by the environment: LIBTPU_INIT_ARGS='--name=value', or XLA_FLAGS."
        )


def environment(dump: Path | None, profile: bool = True) -> dict[str, str]:
    """Of the child: no metadata server, no lock file, no devices; dumps into a folder, if there is
    one. The profile of slots among them takes the compiler longer than all the rest of a large
    program."""
    env = dict(os.environ)
    env.update(
        TPU_SKIP_MDS_QUERY="1",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        TPU_LOG_DIR="disabled",
        TPU_MIN_LOG_LEVEL="3",
        TPU_STDERR_LOG_LEVEL="3",
        TPU_ACCELERATOR_TYPE="v5litepod-4",
        TPU_WORKER_HOSTNAMES="localhost",
        OMP_NUM_THREADS="1",
    )
    env["PYTHONPATH"] = os.pathsep.join(p for p in (str(_ROOT), env.get("PYTHONPATH", "")) if p)
    if dump is not None and profile:
        flags = (
            f"--xla_jf_dump_to={dump} --xla_jf_dump_llo_text=true "
            "--xla_jf_dump_llo_pass_label_regex=static-bundle-profile"
        )
        env["LIBTPU_INIT_ARGS"] = f"{env.get('LIBTPU_INIT_ARGS', '')} {flags}".strip()
    if dump is not None:
        flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_dump_hlo_as_proto"
        env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {flags}".strip()
    return env


def compile_text(
    text: str,
    topology: Topology,
    partitions: int = 1,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    serialize: bool = False,
    profile: bool = True,
    progress: bool | None = None,
    plugin: str = "tpu",
) -> Compiled:
    """Compiles StableHLO for a topology. The child is gone when this returns or raises.

    With `serialize` it is compiled once more, without dumps: an executable keeps the flags it was
    compiled with, and a pack is found only by a process that has the same.
    """
    require_no_options()
    sites = [s for s in os.environ.get("TORCH_TPU_TEST_SITE_PACKAGES", "").split(":") if s]
    if plugin == "tpu":
        require_libtpu(sites)
    folder = Path(tempfile.mkdtemp(prefix="torch-tpu-aot-"))
    bar = ElapsedBar(f"compiling for {topology.name}", progress)
    try:
        (folder / "program.mlir").write_text(text)
        dump = folder / "dump"
        dump.mkdir()
        command = [sys.executable, "-m", "torch_tpu.aot.child", topology.name, plugin, *sites]
        task = {"path": str(folder / "program.mlir"), "partitions": partitions}
        with Child(command, timeout, environment(dump, profile)) as child:
            answer = child.run(task | {"optimized": str(folder / "optimized.pb")}, bar.tick)
        packed: dict[str, Any] = {}
        if serialize and answer["status"] == "ok":
            with Child(command, timeout, environment(None)) as child:
                packed = child.run(task | {"serialized": str(folder / "executable")}, bar.tick)
        bar.close()
        for one in (answer, packed):
            if one.get("status", "ok") == "ok":
                continue
            error = _error(one, topology)
            if isinstance(error, DoesNotFitError):
                error.live = _largest(dump, "*optimizations-live-range.txt").decode(
                    errors="replace"
                )
                error.optimized = _largest(dump, "*after_optimizations.hlo.pb")
                error.seconds = one.get("seconds", 0.0)
            raise error
        return _collect(answer | {"fingerprint": packed.get("fingerprint", [])}, folder, dump)
    finally:
        bar.close()
        shutil.rmtree(folder, ignore_errors=True)


def _collect(answer: dict[str, Any], folder: Path, dump: Path) -> Compiled:
    optimized = folder / "optimized.pb"
    executable = folder / "executable"
    return Compiled(
        {k: v for k, v in answer.items() if k.endswith("_bytes") or k in ("flops", "costs")}
        | {"bytes_accessed": answer["bytes_accessed"]},
        optimized.read_bytes() if optimized.exists() else b"",
        answer["seconds"],
        answer["compiler"],
        answer["kinds"],
        _largest(dump, "*TLP*static-bundle-profile.txt").decode(errors="replace"),
        _largest(dump, "*optimizations-live-range.txt").decode(errors="replace"),
        executable.read_bytes() if executable.exists() else None,
        [(name, value) for name, value in answer["fingerprint"]],
    )


def _largest(folder: Path, pattern: str) -> bytes:
    """The program's own; small ones beside it belong to its start and end."""
    files = sorted(folder.glob(pattern), key=lambda f: f.stat().st_size)
    return files[-1].read_bytes() if files else b""


def _error(answer: dict[str, Any], topology: Topology) -> AotError:
    detail = str(answer.get("detail", ""))
    if answer["status"] == "hangs":
        return CompilerTimeoutError(
            f"the compiler gave no answer for {topology.name} in time ({detail}); it was stopped. "
            "Give it longer (timeout=, --timeout), or make layers that are alike one loop (scan=)."
        )
    if answer["status"] == "crashes":
        code = answer.get("code", 0)
        by = f" ({signal.Signals(-code).name})" if code < 0 else ""
        if code == -signal.SIGKILL:
            return CompilerCrashError(
                f"the TPU compiler was killed{by} while it compiled for {topology.name}, most "
                "likely for want of memory: make layers that are alike one loop (scan=, --scan), "
                "leave out the use of matrix units (mxu=False, --no-mxu), or take a machine with "
                "more."
            )
        return CompilerCrashError(
            f"the TPU compiler died{by} while it compiled for {topology.name}: {detail}. That is a "
            "fault of the compiler, often for one shape only: try another topology or another "
            "libtpu, and report it with the module (torch_tpu.aot.trace(...).text)."
        )
    short = " ".join(detail.split())[:1500]
    if detail.startswith(("[resolve_plugin]", "[Plugin::load]")):
        return AotError(f"libtpu cannot be loaded. {short} `torch-tpu doctor` looks for the cause.")
    if small := _SMALL_MEMORY.search(detail):
        return AotError(
            f"a kernel does not fit into the {small[1].upper()} of {topology.name}: its blocks are "
            "held there whole. Give pallas_call a grid and block_specs, or smaller blocks. The "
            f"compiler says: {short}"
        )
    if "RESOURCE_EXHAUSTED" in detail or "Ran out of memory" in detail:
        return DoesNotFitError(f"the program does not fit into the HBM of {topology.name}", detail)
    return AotError(f"the TPU compiler refuses the program for {topology.name}: {short}")


class ElapsedBar:
    """A moving bar with the time on a terminal; elsewhere a line now and then, or nothing."""

    def __init__(self, what: str, show: bool | None = None) -> None:
        self._what = what
        self._tty = sys.stderr.isatty()
        self._show = self._tty if show is None else show
        self._shown = 0.0
        self._open = False

    def tick(self, seconds: float) -> None:
        if not self._show:
            return
        now = time.monotonic()
        if self._tty:
            width = 24
            at = int(seconds * 8) % (2 * width)
            at = at if at < width else 2 * width - 1 - at
            bar = "".join("#" if abs(i - at) < 3 else "." for i in range(width))
            columns = shutil.get_terminal_size().columns - 1
            line = f"[{bar}] {self._what}  {int(seconds) // 60}:{int(seconds) % 60:02d}"
            print(f"\r{line[:columns]:<{columns}}", end="", file=sys.stderr, flush=True)
            self._open = True
        elif seconds > 1 and now - self._shown > 30:
            print(f"{self._what}: {seconds:.0f} s", file=sys.stderr, flush=True)
            self._shown = now

    def close(self) -> None:
        if self._open:
            columns = shutil.get_terminal_size().columns - 1
            print(f"\r{'':<{columns}}\r", end="", file=sys.stderr, flush=True)
            self._open = False
