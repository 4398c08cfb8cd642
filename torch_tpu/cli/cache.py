"""`torch-tpu cache`: the folder of compiled programs."""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch_tpu.cli._common import CommandError, add_json, show, size_text

_HOME = re.compile(r"[a-z0-9]+-[0-9a-f]{32}")
_DAY = 24 * 3600


@dataclass
class Namespace:
    """The programs of one compiler, device and build."""

    folder: str
    programs: int = 0
    bytes: int = 0
    last_used: float = 0  # seconds since 1970; 0 when there are no programs
    description: dict[str, str] = field(default_factory=dict)


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "cache",
        help="compiled programs kept on disk: what there is, clear, export, import",
        description="The folder of compiled programs (TORCH_TPU_CACHE_DIR, docs/caches.md).",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    info = actions.add_parser("info", help="where it is, how large, and for which compilers")
    info.set_defaults(run=_info)

    clear = actions.add_parser(
        "clear",
        help="remove programs",
        description="Removes programs; a process that runs meanwhile is not disturbed.",
    )
    clear.add_argument(
        "--older-than", type=float, metavar="DAYS", help="only those not used for so many days"
    )
    clear.set_defaults(run=_clear)

    export = actions.add_parser(
        "export",
        help="write the programs for this device and build into a pack",
        description="Writes the programs that this installation would use into one file, for "
        "`torch-tpu cache import` or TORCH_TPU_PACK on a machine of the same kind.",
    )
    export.add_argument("file", type=Path, help="the pack to write")
    export.set_defaults(run=_export)

    take = actions.add_parser(
        "import",
        help="put the programs of a pack into the folder",
        description="Puts the programs of a pack into the folder. A pack holds machine code: "
        "import only what you trust.",
    )
    take.add_argument("file", type=Path, help="the pack to read")
    take.set_defaults(run=_import)
    for action in (info, clear, export, take):
        add_json(action)


def folder() -> Path:
    """The folder of programs; raises when it is off."""
    from torch_tpu import _C

    path = _C._cache_dir()
    if not path:
        raise CommandError(
            "the disk cache is off: TORCH_TPU_CACHE_DIR says so, or there is no HOME to keep it in"
        )
    return Path(path)


def namespaces(root: Path) -> list[Namespace]:
    """What is in the folder, the last used first."""
    out = []
    for home in sorted(root.iterdir()) if root.is_dir() else []:
        if not _HOME.fullmatch(home.name) or not home.is_dir():
            continue
        one = Namespace(home.name)
        for path in home.glob("*.program"):
            try:
                status = path.stat()
            except FileNotFoundError:  # another process removed it
                continue
            one.programs += 1
            one.bytes += status.st_size
            one.last_used = max(one.last_used, status.st_mtime)
        about = home / "namespace.json"
        try:
            if about.is_file():  # a pipe would never end
                one.description = json.loads(about.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            one.description = {}
        out.append(one)
    return sorted(out, key=lambda one: -one.last_used)


def _info(args: argparse.Namespace) -> int:
    from torch_tpu import _C

    root = folder()
    try:
        bound = _C._cache_bytes()
    except ValueError as error:
        raise CommandError(str(error)) from error
    found = namespaces(root)
    total = sum(one.bytes for one in found)
    data = {
        "folder": str(root),
        "exists": root.is_dir(),
        "bytes": total,
        "max_bytes": bound,
        "programs": sum(one.programs for one in found),
        "namespaces": [asdict(one) for one in found],
    }
    lines = [
        f"folder    {root}{'' if root.is_dir() else ' (does not exist yet)'}",
        f"programs  {data['programs']}",
        f"size      {size_text(total)} of {size_text(bound) if bound else 'any size'}",
    ]
    if found:
        lines.append("")
        lines.append(f"{'for':<36} {'programs':>8} {'size':>10}  {'last used':<16}  folder")
    for one in found:
        about = one.description
        name = f"{about.get('device', '?')}, torch {about.get('torch', '?')}"
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.last_used))
        used = used if one.programs else "never"
        size = size_text(one.bytes)
        lines.append(f"{name[:36]:<36} {one.programs:>8} {size:>10}  {used:<16}  {one.folder}")
    show(args, data, "\n".join(lines))
    return 0


def _clear(args: argparse.Namespace) -> int:
    root = folder()
    limit = None if args.older_than is None else time.time() - args.older_than * _DAY
    removed = freed = 0
    for one in namespaces(root):
        home = root / one.folder
        for path in home.glob("*.program"):
            try:
                status = path.stat()
                if limit is not None and status.st_mtime > limit:
                    continue
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CommandError(f"{path} cannot be removed: {error.strerror}") from error
            removed += 1
            freed += status.st_size
        _remove_if_empty(home)
    data = {"folder": str(root), "removed": removed, "bytes": freed}
    show(args, data, f"removed {removed} programs, {size_text(freed)}, from {root}")
    return 0


def _remove_if_empty(home: Path) -> None:
    """Without programs and without a writer at work."""
    old = time.time() - 3600
    try:
        rest = [path for path in home.iterdir() if path.name != "namespace.json"]
        if any(not p.name.startswith("tmp-") or p.stat().st_mtime > old for p in rest):
            return
        for path in home.iterdir():
            path.unlink(missing_ok=True)
        home.rmdir()
    except OSError:  # somebody writes into it just now
        return


def _export(args: argparse.Namespace) -> int:
    from torch_tpu import _C

    root = folder()
    try:
        count = _C._export_cache(str(args.file.absolute()))
    except RuntimeError as error:
        raise CommandError(str(error), code=2) from error
    size = args.file.stat().st_size
    data = {"folder": str(root), "file": str(args.file), "programs": count, "bytes": size}
    show(args, data, f"wrote {count} programs, {size_text(size)}, to {args.file}")
    return 0


def _import(args: argparse.Namespace) -> int:
    from torch_tpu import _C

    root = folder()
    try:
        count = _C._import_cache(str(args.file.absolute()))
        wanted = _C._pack_info(str(args.file.absolute()))["programs"]
    except RuntimeError as error:
        raise CommandError(str(error), code=2) from error
    if count < wanted:
        raise CommandError(f"only {count} of {wanted} programs could be written to {root}")
    data = {"folder": str(root), "file": str(args.file), "programs": count}
    show(args, data, f"put {count} programs into {root}")
    return 0
