"""Runs PyTorch's test data and our own cases on XLA:CPU and keeps the programs they become."""

from __future__ import annotations

import fnmatch
import hashlib
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ..children import ROOT, Task
from ..run import progress
from .children import python_child
from .lines import append_line, read_lines
from .programs import Store

# Compiling is most of the time here, and how fast the program then runs is no matter.
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
# An OpInfo's first of these gets several samples, each other one a single sample.
DTYPES = ("float32", "bfloat16", "int64", "complex64", "float64", "float16", "bool", "uint8")
SAMPLES = 3


def source_of(task: Task) -> str:
    return ":".join(str(task[k]) for k in ("source", "name", "dtype") if k in task)


def all_tasks() -> list[Task]:
    from ..op_checks import OPS, dtypes_of
    from ..other_checks import OPTIMIZERS
    from .cases import CASES
    from .large import LARGE

    files = sorted((ROOT / "tests" / "python" / "ops").glob("test_*.py"))
    tasks: list[Task] = [{"source": "large", "name": name} for name in LARGE]
    tasks += [{"source": "explicit", "name": name} for name in CASES]
    tasks += [{"source": what, "name": f.stem} for f in files for what in ("case", "tests")]
    tasks += [{"source": "optimizer", "name": name} for name in OPTIMIZERS]
    for name, op in OPS.items():
        found = [d for d in DTYPES if d in dtypes_of(op)] or dtypes_of(op)[:1]
        tasks += [
            {"source": "opinfo", "name": name, "dtype": dtype, "samples": SAMPLES if not i else 1}
            for i, dtype in enumerate(found)
        ]
    return tasks


def stamp() -> str:
    """Of all that programs depend on."""
    files = [Path(__file__).with_name(name) for name in ("cases.py", "large.py")]
    for folder in ("csrc/ops", "csrc/stablehlo", "csrc/trace"):
        files += sorted((ROOT / folder).glob("*.*"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class Recording:
    """Which tasks have been run, beside the programs they gave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "recorded.jsonl"
        self.store = Store(folder / "programs")

    def done(self) -> set[str]:
        return {row["task"] for row in read_lines(self.log)}

    def forget(self, pattern: str) -> list[Task]:
        """Drops the programs of these entries; the tasks that record them."""
        gone = [p for p in self.store if fnmatch.fnmatch(p.entry, pattern)]
        kept = [p for p in self.store if not fnmatch.fnmatch(p.entry, pattern)]
        sources = {p.source for p in gone}
        texts = [(p, self.store.path(p).read_text()) for p in kept]
        shutil.rmtree(self.store.folder, ignore_errors=True)
        self.store = Store(self.store.folder)
        for p, text in texts:
            self.store.add(p.entry, p.form, text, p.source)
        return [
            task
            for task in all_tasks()
            if source_of(task) in sources
            or (task["source"] == "explicit" and fnmatch.fnmatch(task["name"], pattern))
        ]

    def run(self, tasks: list[Task], timeout: float) -> None:
        forms: dict[str, str] = _forms()
        dump = self.folder / "dump"
        shutil.rmtree(dump, ignore_errors=True)
        child = python_child(
            "conformance.tpu_compile.record_child",
            timeout,
            TORCH_TPU_DUMP=str(dump),
            TORCH_TPU_MODE="strict",
            TORCH_TPU_FALLBACK="silent",
            TORCH_TPU_PLUGIN="cpu",
            XLA_FLAGS=QUICK,
        )
        counts: Counter[str] = Counter()
        started = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            for i, task in enumerate(tasks):
                result: dict[str, Any] = child.run(task)
                kept = self._collect(dump, forms, source_of(task))
                counts["programs"] += kept
                row = {"task": source_of(task), "status": result["status"], "kept": kept}
                append_line(
                    self.log, {**row, "detail": result.get("detail") or result.get("problems")}
                )
                progress(i + 1, len(tasks), counts, started, source_of(task))
        finally:
            child.stop()
            shutil.rmtree(dump, ignore_errors=True)

    def _collect(self, dump: Path, forms: dict[str, str], source: str) -> int:
        kept = 0
        for file in sorted(dump.glob("*.mlir"), key=lambda f: int(f.name.split("_")[0])):
            form = file.name.split("_", 1)[1].removesuffix(".mlir")
            if form in forms:
                kept += self.store.add(forms[form], form, file.read_text(), source)
            file.unlink()
        return kept


def _forms() -> dict[str, str]:
    import torch_tpu

    # As files are named.
    return {form.replace(".", "_"): entry for form, entry in torch_tpu._C._op_forms().items()}
