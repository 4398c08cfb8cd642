"""What `make sanitize` reads and prints; the run itself takes a build of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "sanitize"
sys.path.insert(0, str(FOLDER))

import run as sanitize  # noqa: E402

REPORT = """\
WARNING: ThreadSanitizer: data race (pid=7)
  Write of size 8 at 0x7b04 by thread T1:
    #0 operator delete(void*) <null> (libtsan.so.2+0x87cf3)
    #1 torch_tpu::trace::Ledger::leave() /src/csrc/trace/value.cpp:120 (_C.so+0x1)
    #2 torch_tpu::trace::DeviceValue::~DeviceValue() /src/csrc/trace/value.cpp:80 (_C.so+0x2)

  Previous read of size 8 at 0x7b04 by main thread:
    #0 torch_tpu::device::Cell::load() const csrc/device/cell.h:33 (_C.so+0x3)
"""


def test_a_report_is_named_by_its_places() -> None:
    assert sanitize.places(REPORT) == "data race: csrc/trace/value.cpp:120, csrc/device/cell.h:33"
    assert sanitize.places("ERROR: AddressSanitizer: heap-use-after-free on address 0x1") == (
        "heap-use-after-free on address 0x1: no line of csrc"
    )
    undefined = "csrc/base/hash.h:12:3: runtime error: shift exponent 64 is too large"
    assert sanitize.places(undefined).startswith("shift exponent 64 is too large: csrc/base/hash.h")


def test_the_same_report_is_printed_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sanitize, "ROOT", tmp_path)
    bar = "==================\n"
    (tmp_path / "report.1").write_text(bar + REPORT + bar + bar + REPORT + bar)
    (tmp_path / "report.2").write_text(bar + REPORT + bar)
    seen: set[Path] = set()
    assert len(sanitize.new_reports(tmp_path, seen)) == 1
    assert sanitize.new_reports(tmp_path, seen) == []


def test_the_tests_it_runs_are_there() -> None:
    tests = [shlex.split(line)[0] for line in sanitize.lines(FOLDER / "tests.txt")]
    assert len(tests) > 10
    assert [test for test in tests if not (ROOT / test).exists()] == []


@pytest.mark.parametrize("name", ["thread.supp", "address.supp", "leak.supp", "deselect.txt"])
def test_every_exception_has_a_reason(name: str) -> None:
    before = ""
    for line in (FOLDER / name).read_text().splitlines():
        if line and not line.startswith("#"):
            assert before.startswith("#"), f"{line}: no comment above it says why"
        before = line


GENERATED = """\
WARNING: ThreadSanitizer: data race (pid=7)
  Write of size 8 at 0x7ffc by thread T7 (mutexes: write M0):
    #0 memset interceptors.inc:87 (libtsan.so.2.0.0+0x8ba90)
    #1 <null> <null> (0x7ffcc3f0d0ea)

  Previous write of size 8 at 0x7ffc by thread T15:
    #0 memset interceptors.inc:87 (libtsan.so.2.0.0+0x8ba90)
    #1 <null> <null> (0x7ffcc3f130ca)

  Thread T7 (tid=1, running) created by main thread at:
    #0 pthread_create (libtsan.so.2.0.0+0x5ac1a)
    #1 torch_tpu::pjrt::Runtime::Runtime() /src/csrc/pjrt/runtime.cpp:95 (_C.so+0x6)
"""


def test_races_within_generated_code_are_xla_s() -> None:
    ours = GENERATED.replace(
        "<null> <null> (0x7ffcc3f130ca)", "fill() /src/csrc/a.cpp:1 (_C.so+0x1)"
    )
    assert sanitize.is_generated(GENERATED)
    assert not sanitize.is_generated(ours)
    assert not sanitize.is_generated(REPORT)
