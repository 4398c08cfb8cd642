"""Energy counters: RAPL for processors, NVML for NVIDIA's cards. What cannot be read is left out.
Imports nothing of the package: the runner loads it by its path."""

from __future__ import annotations

import ctypes
from pathlib import Path

RAPL = Path("/sys/class/powercap")


class Meter:
    """Joules between two readings, by source ("cpu", "gpu 0")."""

    def __init__(self, rapl: Path = RAPL, nvml: bool = True) -> None:
        self._domains = _domains(rapl)
        self._nvml = _Nvml() if nvml else None
        self._start = self._read()

    def start(self) -> None:
        """Counts from here."""
        self._start = self._read()

    def joules(self) -> dict[str, float]:
        """Since the start. A RAPL counter that wrapped once is taken so."""
        now = self._read()
        out: dict[str, float] = {}
        for key, value in now.items():
            before = self._start.get(key)
            if before is None:
                continue
            used = value - before
            if used < 0 and key in self._domains:
                used += self._domains[key] * 1e-6
            name = "cpu" if key in self._domains else key
            out[name] = out.get(name, 0.0) + max(0.0, used)
        return out

    def _read(self) -> dict[str, float]:
        out = {}
        for folder in self._domains:
            try:
                out[folder] = int((Path(folder) / "energy_uj").read_text()) * 1e-6
            except (OSError, ValueError):
                continue
        if self._nvml is not None:
            out.update(self._nvml.read())
        return out


def _domains(root: Path) -> dict[str, int]:
    """Folders of whole packages, with the range of their counters. Parts of a package ("core") and
    what mirrors it ("intel-rapl-mmio") would count twice."""
    out = {}
    for folder in sorted(root.glob("intel-rapl:*")) if root.is_dir() else []:
        if folder.name.count(":") != 1:
            continue
        try:
            int((folder / "energy_uj").read_text())
            out[str(folder)] = int((folder / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            continue
    return out


class _Nvml:
    """The few calls of NVIDIA's library, by ctypes: no package is needed."""

    def __init__(self) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if self._library.nvmlInit_v2() != 0:
            return
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self._handles.append(handle)

    def read(self) -> dict[str, float]:
        out = {}
        for index, handle in enumerate(self._handles):
            millijoules = ctypes.c_ulonglong()
            call = self._library.nvmlDeviceGetTotalEnergyConsumption
            if call(handle, ctypes.byref(millijoules)) == 0:
                out[f"gpu {index}"] = millijoules.value * 1e-3
        return out
