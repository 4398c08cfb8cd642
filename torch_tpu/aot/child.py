"""A child process with libtpu in it: compiles program files for one topology.

python -m torch_tpu.aot.child TOPOLOGY PLUGIN [FOLDER...]
PLUGIN is "tpu" or a library; FOLDERs are searched for libtpu besides sys.path. A task has the
`path` of the text, perhaps `partitions`, and files that `optimized` and `serialized` go to.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from torch_tpu.aot.process import end_with_parent, serve


def main() -> None:
    end_with_parent()
    import torch_tpu

    name, plugin, *folders = sys.argv[1:]
    torch_tpu._C._set_search_dirs([*folders, *torch_tpu._C._search_dirs()])
    topology: Any = None

    def compile_one(task: dict[str, Any]) -> dict[str, Any]:
        nonlocal topology
        text = Path(task["path"]).read_text()
        start = time.perf_counter()
        try:
            if topology is None:
                topology = torch_tpu._C._Topology(name, plugin)
            files = {kind: task[kind] for kind in ("optimized", "serialized") if task.get(kind)}
            partitions = task.get("partitions", 1)
            figures = topology.compile(
                text,
                partitions,
                # As a process with the device would: for any device of its client.
                portable="serialized" in files and partitions == 1,
                **dict.fromkeys(files, True),
            )
        except RuntimeError as error:
            return {"status": "refused", "detail": str(error)[:20_000], "seconds": _since(start)}
        seconds = _since(start)
        for kind, path in files.items():
            if kind in figures:
                Path(path).write_bytes(figures.pop(kind))
        return {
            "status": "ok",
            **figures,
            "seconds": seconds,
            "compiler": topology.platform_version,
            "kinds": sorted(set(topology.device_kinds)),
            **({"fingerprint": topology.fingerprint} if "serialized" in files else {}),
        }

    serve(compile_one)


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 3)


if __name__ == "__main__":
    main()
