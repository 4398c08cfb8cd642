"""A child process with libtpu in it: compiles program files for one topology.

python -m conformance.tpu_compile.compile_child TOPOLOGY PLUGIN [FOLDER...]
PLUGIN is "tpu" or a library; FOLDERs are searched for libtpu besides sys.path.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ..children import serve


def main() -> None:
    import torch_tpu

    name, plugin, *folders = sys.argv[1:]
    torch_tpu._C._set_search_dirs([*folders, *torch_tpu._C._search_dirs()])
    topology = torch_tpu._C._Topology(name, plugin)
    version = topology.platform_version

    def compile_one(task: dict[str, Any]) -> dict[str, Any]:
        text = Path(task["path"]).read_text()
        start = time.perf_counter()
        try:
            figures = topology.compile(text)
        except RuntimeError as error:
            detail = " ".join(str(error).split())[:600]
            return {"status": "refused", "detail": detail, "seconds": _since(start)}
        seconds = _since(start)
        return {"status": "ok", **figures, "seconds": seconds, "compiler": version}

    serve(compile_one)


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 3)


if __name__ == "__main__":
    main()
