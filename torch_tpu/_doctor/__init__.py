"""What `torch-tpu doctor` looks at. Needs neither torch nor the native module: it must work where
they do not. Whatever starts a device does so in a child process."""

from __future__ import annotations

from torch_tpu._doctor.finding import Finding, Places, Status
from torch_tpu._doctor.run import diagnose

__all__ = ["Finding", "Places", "Status", "diagnose"]
