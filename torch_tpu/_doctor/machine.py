"""Checks of the machine: chips and who may use them, the folder of programs, room on disks."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torch_tpu._doctor.finding import Finding, Places
from torch_tpu._doctor.packages import find_plugin

_GOOGLE = "0x1ae0"
_ROOM = 64 << 20  # less than this is as good as nothing: programs are up to some MiB each
_PROBE = 1 << 20


def chips(places: Places) -> Iterator[Finding]:
    """TPU chips on the bus, their files, and whether this user may open them."""
    on_bus = _pci_chips(places.pci)
    files = _chip_files(places.dev) if on_bus or _accels(places.dev) else []
    asked = places.environ.get("TORCH_TPU_PLUGIN") == "tpu"
    if not on_bus and not files:
        if asked:
            fix = "run on a TPU machine, or TORCH_TPU_PLUGIN=cpu; ahead of time needs no chip"
            yield Finding("chips", "problem", "TORCH_TPU_PLUGIN=tpu, but no TPU is attached", fix)
        else:
            yield Finding("chips", "ok", "no TPU attached: programs run on XLA:CPU")
        return
    details = {"pci": on_bus, "files": [str(file) for file in files]}
    if find_plugin("tpu", places) is None:
        message = f"{len(on_bus or files)} TPU chips, but libtpu is not installed"
        fix = "pip install libtpu  (or: pip install 'torchtpu[tpu]')"
        yield Finding("libtpu", "problem", message, fix, details)
    if not files:
        message = f"{len(on_bus)} TPU chips on the PCI bus, but no {places.dev}/accel* or vfio file"
        fix = (
            "load the driver (sudo modprobe vfio-pci, or the image's accel driver), then look again"
        )
        yield Finding("chips", "problem", message, fix, details)
        return
    closed = [file for file in files if not _may_use(file)]
    for file in closed:
        yield Finding("chips", "problem", *_refused(file), details)
    if not closed:
        names = ", ".join(file.name for file in files)
        yield Finding(
            "chips", "ok", f"{len(files)} chip files, all open to us: {names}", "", details
        )


def _pci_chips(root: Path) -> list[str]:
    """Google's devices that are no network card and no disk."""
    out = []
    for device in sorted(root.iterdir()) if root.is_dir() else []:
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == _GOOGLE and not kind.startswith(("0x01", "0x02")):
            out.append(device.name)
    return out


def _accels(dev: Path) -> list[Path]:
    return sorted(file for file in dev.glob("accel*") if re.fullmatch(r"accel\d+", file.name))


def _chip_files(dev: Path) -> list[Path]:
    groups = [file for file in (dev / "vfio").glob("*") if file.name.isdigit()]
    return [*_accels(dev), *sorted(groups)]


def _may_use(file: Path) -> bool:
    return os.access(file, os.R_OK | os.W_OK, effective_ids=True)


def _refused(file: Path) -> tuple[str, str]:
    status = file.stat()
    owner, group = _user(status.st_uid), _group(status.st_gid)
    mode = stat.filemode(status.st_mode)
    message = f"no permission to read and write {file} ({mode}, {owner}:{group})"
    me = _user(os.geteuid())
    if status.st_mode & stat.S_IRGRP and status.st_mode & stat.S_IWGRP and status.st_gid != 0:
        fix = f"sudo usermod -aG {group} {me}, then log in again"
    else:
        fix = f'sudo chmod a+rw {file}; a udev rule with MODE="0666" keeps it so'
    return message, fix


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def cache_folder(places: Places) -> Path | None:
    """As the native module takes it; None when the cache is off."""
    env = places.environ
    given = env.get("TORCH_TPU_CACHE_DIR", "")
    if given in ("0", "false", "off"):
        return None
    home = env.get("HOME", "")
    if not given:
        xdg = env.get("XDG_CACHE_HOME", "")
        if xdg.startswith("/"):
            return Path(xdg) / "torch_tpu"
        given = "~/.cache/torch_tpu"
    if given.startswith("~/"):
        return Path(home) / given[2:] if home.startswith("/") else None
    return Path.cwd() / given


def cache(places: Places) -> Iterator[Finding]:
    """The folder of compiled programs: ours alone, readable, with room."""
    folder = cache_folder(places)
    if folder is None:
        message = "off: every process compiles its programs anew"
        yield Finding("cache", "warning", message, "unset TORCH_TPU_CACHE_DIR, and set HOME")
        return
    found = list(_folder_problems(folder))
    yield from found
    if not found:
        state = "" if folder.exists() else " (does not exist yet)"
        yield Finding("cache", "ok", f"{folder}{state}", "", {"folder": str(folder)})


def _folder_problems(folder: Path) -> Iterator[Finding]:
    elsewhere = "or name another folder with TORCH_TPU_CACHE_DIR"
    try:
        status = folder.stat()
    except FileNotFoundError:
        yield from _parent_problems(folder, elsewhere)
        return
    except OSError as error:
        message = f"{folder} cannot be reached: {error.strerror}"
        yield Finding("cache", "problem", message, f"sudo chown -R $USER {folder}; {elsewhere}")
        return
    if not stat.S_ISDIR(status.st_mode):
        yield Finding("cache", "problem", f"{folder} is no folder", f"rm {folder}; {elsewhere}")
    elif status.st_uid != os.geteuid():
        message = (
            f"{folder} belongs to {_user(status.st_uid)}, and we run as {_user(os.geteuid())}; "
            "programs are machine code, so it is not used"
        )
        fix = f"sudo chown -R {_user(os.geteuid())} {folder}; {elsewhere}"
        yield Finding("cache", "problem", message, fix)
    elif status.st_mode & 0o022:
        message = f"others may write {folder} ({stat.filemode(status.st_mode)}), so it is not used"
        yield Finding("cache", "problem", message, f"chmod go-w {folder}; {elsewhere}")
    elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        message = f"{folder} cannot be read and written ({stat.filemode(status.st_mode)})"
        yield Finding("cache", "problem", message, f"chmod -R u+rwX {folder}; {elsewhere}")
    else:
        yield from _content_problems(folder)
        yield from _room_problems("cache", folder, "torch-tpu cache clear, ")


def _parent_problems(folder: Path, elsewhere: str) -> Iterator[Finding]:
    """Of a folder that is still to be made."""
    parent = next((p for p in folder.parents if p.exists()), Path("/"))
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        message = f"{folder} cannot be made: {parent} is not writable for us"
        yield Finding("cache", "problem", message, f"sudo chown $USER {parent}; {elsewhere}")
    else:
        yield from _room_problems("cache", parent, "")


def _content_problems(folder: Path) -> Iterator[Finding]:
    bad = []
    for home in folder.iterdir():
        if not home.is_dir():
            continue
        if home.stat().st_uid != os.geteuid() or not os.access(
            home, os.R_OK | os.W_OK | os.X_OK, effective_ids=True
        ):
            bad.append(home)
            continue
        files = home.glob("*.program")
        bad += [file for file in files if not os.access(file, os.R_OK, effective_ids=True)]
    if bad:
        message = f"{len(bad)} entries of {folder} cannot be read, the first is {bad[0].name}"
        fix = f"sudo chown -R $USER {folder} && chmod -R u+rwX {folder}; or torch-tpu cache clear"
        yield Finding("cache", "problem", message, fix)


def _room_problems(check: str, folder: Path, clear: str) -> Iterator[Finding]:
    """Little room, or none for this user: a quota shows only when something is written."""
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    fix = f"{clear}free some space there, or TORCH_TPU_CACHE_DIR=/another/disk"
    why = ""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="tmp-doctor-") as file:
            file.write(b"\1" * _PROBE)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        why = f": writing {_PROBE >> 20} MiB failed with '{error.strerror}'"
    if why or free < _ROOM:
        message = f"the disk of {folder} is full ({free >> 20} MiB free){why}"
        yield Finding(check, "problem", message, fix, {"free_bytes": free})


def temporary(_: Places) -> Iterator[Finding]:
    """The folder for temporary files, which packs and plugins use."""
    try:
        folder = Path(tempfile.gettempdir())
    except OSError as error:
        yield Finding("temporary files", "problem", str(error), "set TMPDIR to a writable folder")
        return
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < _ROOM:
        message = f"{folder} is full ({free >> 20} MiB free)"
        yield Finding("temporary files", "problem", message, "free some space, or set TMPDIR")
    else:
        yield Finding("temporary files", "ok", f"{folder}, {free >> 20} MiB free")
