"""Compiles every entry of the op table for a TPU that is not there.

    python -m conformance.tpu_compile                    record, compile, write the table
    python -m conformance.tpu_compile --ops 'upsample*'  these entries only, recorded anew
    python -m conformance.tpu_compile --no-record        compile what has been recorded

Programs and answers are kept in build/tpu-compile; a run goes on where the last one stopped. The
table is tests/conformance/tpu_compile.json. Needs libtpu (`pip install --no-deps libtpu==0.0.51`).
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from ..children import Child
from .children import folder_of, python_child
from .compile import compile_all
from .record import Recording, all_tasks, source_of, stamp
from .table import TABLE, make_table, surprises, write_table

TRIVIAL = """module @trivial {
  func.func public @main(%arg0: tensor<8xf32>) -> (tensor<8xf32>) {
    return %arg0 : tensor<8xf32>
  }
}
"""


def record(recording: Recording, pattern: str, timeout: float) -> None:
    """What is missing, or everything anew when the lowerings have changed."""
    mark = recording.folder / "stamp"
    fresh = mark.exists() and mark.read_text() == stamp()
    if pattern != "*":
        tasks = recording.forget(pattern) or all_tasks()
        recording.run(tasks, timeout)
        return
    if not fresh:
        recording.forget("*")
        recording.log.unlink(missing_ok=True)
        recording.folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(stamp())
    done = recording.done()
    recording.run([t for t in all_tasks() if source_of(t) not in done], timeout)


def target_of(child: Child, topology: str) -> str:
    """The topology and the compiler's version, "v5e:2x2 cl/1003875606": answers hold for these."""
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(TRIVIAL)
        file.flush()
        answer = child.run({"key": "", "path": file.name})
    child.stop()
    if answer["status"] != "ok":
        sys.exit(f"The compiler for {topology} does not start: {answer.get('detail', '')}")
    version = re.search(r"cl/\d+", answer["compiler"])
    return f"{topology} {version.group() if version else answer['compiler']}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="conformance.tpu_compile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ops", default="*", help="table entries as a shell pattern")
    parser.add_argument("--jobs", type=int, default=1, help="compiler processes (default 1)")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one program")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--plugin", default="tpu", help="tpu, or the path of a plugin library")
    parser.add_argument("--no-record", action="store_true", help="use the programs there are")
    parser.add_argument("--again", action="store_true", help="repeat what was not right")
    parser.add_argument("--folder", type=Path, default=folder_of("."), help=argparse.SUPPRESS)
    args = parser.parse_args()

    import torch_tpu

    sites = [s for s in os.environ.get("TORCH_TPU_TEST_SITE_PACKAGES", "").split(":") if s]

    def compiler() -> Child:
        module = "torch_tpu.aot.child"
        return python_child(module, args.timeout, args.topology, args.plugin, *sites)

    target = target_of(compiler(), args.topology)
    recording = Recording(args.folder)
    if not args.no_record:
        record(recording, args.ops, 600.0)
    programs = [p for p in recording.store if fnmatch.fnmatch(p.entry, args.ops)]
    results = args.folder / "results.jsonl"
    answers = compile_all(
        recording.store, programs, results, target, compiler, args.jobs, args.again
    )
    entries = [n for n in torch_tpu._C._op_names() if fnmatch.fnmatch(n, args.ops)]
    table = make_table(entries, answers.values())
    if args.ops == "*":
        write_table(table, target)
        print(f"wrote {TABLE}")
    counts = Counter(row["status"] for row in table.values())
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    found = surprises(table)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
