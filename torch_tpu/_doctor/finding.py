"""A finding of the doctor, and the places of the machine it looks at."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "warning", "problem"]


@dataclass
class Finding:
    """One line of the report. A warning is nothing that stops the device from working."""

    check: str
    status: Status
    message: str
    fix: str = ""
    details: dict[str, Any] = field(default_factory=dict)


def _site_dirs() -> list[Path]:
    """Where packages and PJRT plugins may be installed, as torch_tpu itself looks for them."""
    found = [Path(p) for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    found += [Path(p) for p in sys.path if p and os.path.isfile(f"{p}/torch/version.py")]
    return list(dict.fromkeys(found))


@dataclass
class Places:
    """Parameters for the tests; the defaults are the machine's own."""

    dev: Path = Path("/dev")
    pci: Path = Path("/sys/bus/pci/devices")
    nvidia_driver: Path = Path("/proc/driver/nvidia/version")
    site: list[Path] = field(default_factory=_site_dirs)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    timeout: float = 120.0  # of the self test, in seconds
