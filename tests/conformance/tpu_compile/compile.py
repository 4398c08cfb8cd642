"""Gives recorded programs to the TPU compiler and keeps its answers, keyed by the text's hash."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ..children import Child, Task
from ..run import progress
from .lines import append_line, read_lines
from .programs import Program, Store


def read_answers(path: Path, target: str) -> dict[str, Task]:
    """The latest answer for each program and this target."""
    return {a["key"]: a for a in read_lines(path) if a.get("target") == target}


def compile_all(
    store: Store,
    programs: list[Program],
    results: Path,
    target: str,
    child: Callable[[], Child],
    jobs: int = 1,
    again: bool = False,
) -> dict[str, Task]:
    """Compiles what has no answer yet. `child` makes a compiler process; one per job.

    With `again` also what was not right last time.
    """
    answers = read_answers(results, target)
    todo: queue.SimpleQueue[Program] = queue.SimpleQueue()
    missing = [
        p for p in programs if p.key not in answers or (again and answers[p.key]["status"] != "ok")
    ]
    for program in missing:
        todo.put(program)
    results.parent.mkdir(parents=True, exist_ok=True)
    lock = threading.Lock()
    counts: Counter[str] = Counter()
    started = time.monotonic()

    def work() -> None:
        compiler = child()
        while True:
            try:
                program = todo.get_nowait()
            except queue.Empty:
                compiler.stop()
                return
            answer = compiler.run({"key": program.key, "path": str(store.path(program))})
            for key in ("path", "costs", "kinds", "code"):
                answer.pop(key, None)
            if "detail" in answer:
                answer["detail"] = " ".join(answer["detail"].split())[:600]
            answer.update(target=target, entry=program.entry, signature=program.signature)
            with lock:
                answers[program.key] = answer
                counts[answer["status"]] += 1
                append_line(results, answer)
                progress(sum(counts.values()), len(missing), counts, started, program.entry)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if sys.stderr.isatty() and missing:
        print(file=sys.stderr)
    return {p.key: answers[p.key] for p in programs}
