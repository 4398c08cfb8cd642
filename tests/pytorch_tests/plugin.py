"""The child's side: a pytest plugin that runs its share of a file and writes down every step.

A line when a test begins and a line when it ends, so that the parent knows which test hung or took
the process with it. What has a line already is not run again."""

from __future__ import annotations

import ctypes
import fnmatch
import json
import os
import random
import re
import resource
import signal
import time
import zlib
from typing import Any

import pytest

# A process that has grown this large ends between two tests, and another goes on.
ROOM = 3 << 30


class Steps:
    """Runs the tests of one share and appends to its file of steps."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.done: set[str] = set(order["done"])
        self.file = open(order["steps"], "a", buffering=1)  # noqa: SIM115 - open as long as we are
        self.outcome = ""
        self.detail = ""

    def write(self, **step: Any) -> None:
        self.file.write(json.dumps(step) + "\n")

    def mine(self, name: str) -> bool:
        share, shares = self.order["share"]
        if zlib.crc32(name.encode()) % shares != share:
            return False
        # The class of a test made for the device ends in one of these.
        if self.order["device_only"] and not re.search("(PRIVATEUSE1|TPU)::", name):
            return False
        sample = self.order["sample"]
        if sample < 1 and random.Random(f"{self.order['seed']} {name}").random() >= sample:
            return False
        keys = self.order["keys"]
        return not keys or any(fnmatch.fnmatch(name, f"*{key}*") for key in keys)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {self.name_of(item): item for item in session.items}
        names = [name for name in items if self.mine(name)]
        left = [name for name in names if name not in self.done]
        self.write(collected=len(names), errors=session.testsfailed)
        for i, name in enumerate(left):
            item = items[name]
            following = items[left[i + 1]] if i + 1 < len(left) else None
            if _resident() > ROOM:
                self.write(full=True)
                self.file.flush()
                os._exit(0)
            self.write(begin=name)
            self.outcome, self.detail = "passed", ""
            started = time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self.write(
                test=name,
                outcome=self.outcome,
                seconds=round(time.monotonic() - started, 3),
                detail=self.detail,
            )
        self.write(finished=True)
        return True

    def name_of(self, item: pytest.Item) -> str:
        return "::".join(item.nodeid.split("::")[1:])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.outcome = "failed"
            text = str(report.longrepr)
            self.detail = (self.detail + text)[-6000:]
        elif report.skipped and self.outcome == "passed":
            expected = hasattr(report, "wasxfail")
            self.outcome = "xfailed" if expected else "skipped"
            self.detail = str(report.longrepr)[-300:]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(uncollected=str(report.longrepr)[-3000:])


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _take_part() -> None:
    """Classes that PyTorch makes for the CPU and CUDA by name are made for this device too.

    PyTorch's own variable for that, PYTORCH_TESTING_DEVICE_FOR_CUSTOM, would also make those that
    are for CUDA alone, or XPU: tens of thousands."""
    from torch.testing._internal import common_device_type

    of_classes = common_device_type.get_desired_device_type_test_bases

    def bases(except_for: Any = None, only_for: Any = None, *rest: Any, **named: Any) -> Any:
        if not isinstance(only_for, str) and {"cpu", "cuda"} <= set(only_for or ()):
            only_for = [*only_for, "privateuse1"]
        return of_classes(except_for, only_for, *rest, **named)

    common_device_type.get_desired_device_type_test_bases = bases


def pytest_configure(config: pytest.Config) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not without the parent
    from torch.testing._internal import common_utils

    _take_part()
    common_utils.parse_cmd_line_args()  # as PyTorch's conftest does; it also sets the seed
    with open(os.environ["TORCH_TPU_PYTORCH_TESTS"]) as file:
        config.pluginmanager.register(Steps(json.load(file)))
