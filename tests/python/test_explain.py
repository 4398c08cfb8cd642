"""torch_tpu.explain(): real runs, and what is said about them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from typing import Any

import pytest
import torch

import torch_tpu
from torch_tpu import _C
from torch_tpu.cli import main

pytestmark = pytest.mark.usefixtures("fresh_counts")

# A size whose programs no run before has left on disk.
UNSEEN = 2**14 + time.time_ns() % 2**16


def ones(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.ones(*sizes).to("tpu", **options)


# Counts


def test_stats_count_what_happened():
    x = ones(4)
    y = x + 1
    y = x + 2  # the same program
    assert y.sum().item() == 12
    y.cpu()
    stats = torch_tpu.stats()
    assert stats["launches"] == 3
    assert (stats["hits"], stats["misses"]) == (1, 2)
    assert stats["compiles"] + stats["disk_hits"] == 2  # the disk may know them
    assert stats["compile_seconds"] + stats["disk"]["saved_seconds"] > 0
    assert stats["uploads"] == 1
    assert stats["upload_bytes"] == 16
    assert stats["host_reads"] == 2
    assert stats["host_read_bytes"] == 4 + 16
    assert stats["cuts"] == {}
    for name in ("replays", "fused_launches", "background_compiles"):
        assert stats[name] == 0
    torch_tpu.reset_stats()
    zero = torch_tpu.stats()
    assert zero["programs"] == 2  # they stay
    kept = ("programs", "disk")  # what the process has on disk is not a count of this run
    counts = {name: value for name, value in zero.items() if name not in kept}
    assert not any(counts.pop("fused").values())
    assert not any(counts.values())


def test_sizes_that_depend_on_data_are_reads():
    torch_tpu.reset_stats()
    x = ones(4)
    torch.nonzero(x)
    assert torch_tpu.stats()["host_reads"] == 1


FALLBACK = """
import pytest, torch, torch_tpu
with pytest.warns(UserWarning, match="linalg_eig"):
    torch.linalg.eig(torch.ones(3, 3, device="tpu"))
report = torch_tpu.explain()
assert report.fallbacks["aten::linalg_eig"]["calls"] == 1
assert torch_tpu.stats()["fallback_calls"] == 1
assert torch_tpu.stats()["fallback_seconds"] > 0
assert "aten::linalg_eig ran on the CPU once" in str(report)
print("right")
"""


def test_fallbacks(run_python):
    """In a process of its own: the warning comes once in each."""
    assert run_python(FALLBACK).strip().endswith("right")


def test_programs():
    x = ones(UNSEEN)
    for _ in range(3):
        torch.sinh(x)
    row = next(p for p in torch_tpu.explain().programs if p.name == "aten::sinh")
    assert (row.runs, row.hits, row.state, row.origin) == (3, 2, "ready", "compiled")
    assert row.ops == {"aten::sinh": 1}
    assert (row.argument_bytes, row.output_bytes) == (4 * UNSEEN, 4 * UNSEEN)
    assert len(row.fingerprint) == 16
    assert row.compile_seconds > 0


# The report


def test_text():
    for n in (3, 5, 7, 9, 11):
        torch.cosh(ones(n))
    text = str(torch_tpu.explain())
    assert text.startswith("TorchTPU, strict mode, ")
    assert "5 launches, 5 programs in memory, 0.0% of calls had their program in memory" in text
    assert "input[0].shape[0]: 3, 5, 7, 9, 11 (self)" in text
    assert "size 3, 5, 7, 9 and 1 more (dim 0 of aten::cosh) at " in text
    assert " for 1 op and 5 values. Pad it" in text
    assert max(map(len, text.splitlines())) < 200


def test_one_hint_for_a_size_that_runs_through_many_ops():
    for n in (3, 5, 7, 9):
        x = ones(n)
        torch.expm1(x), torch.log1p(x), torch.erf(x)  # of no other test
    report = torch_tpu.explain()
    hints = [hint for hint in report.hints if hint.startswith("size ")]
    assert len(hints) == 1
    assert " for 3 ops and 4 values." in hints[0]
    cause = next(cause for cause in report.causes if cause.kind == "change")
    assert cause.values == ["3", "5", "7", "9"]
    assert cause.ops == ["aten::erf", "aten::expm1", "aten::log1p"]
    assert cause.value_waited[0] == 0  # the first step's
    assert sum(cause.value_waited) == pytest.approx(cause.waited_seconds)


EPOCH = """
import torch, torch_tpu
from torch import nn

widths = (3, 8, 12, 16)
layers = [nn.Conv2d(a, b, 3) for a, b in zip(widths, widths[1:])]
parts = [part for layer in layers for part in (layer, nn.ReLU())]
model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(16, 4)).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def epoch(batches):
    for n in batches:
        loss = model(torch.zeros(n, 3, 7, 7).to("tpu")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

epoch([32] * 3 + [8])
report = torch_tpu.explain()
changes = [cause for cause in report.causes if cause.kind == "change"]
assert [cause.text for cause in changes] == ["batch 32 → 8"], changes
assert changes[0].where == "<string>:13 in epoch"
assert changes[0].programs >= 1
assert len(changes[0].ops) > 8
hints = [hint for hint in report.hints if "batch" in hint]
assert all("drop_last=True" in hint for hint in hints)
assert hints or torch_tpu.get_mode() == "fused"  # where one quick program may cost too little
assert not any("16" in hint for hint in report.hints), report.hints
assert "batch 32 → 8" in str(report)
print("right")
"""


@pytest.mark.parametrize("mode", ["fused", "strict"])
def test_the_batch_is_blamed_and_not_the_widths_of_layers(mode, run_python):
    """In a process of its own, with nothing on disk."""
    out = run_python(EPOCH, TORCH_TPU_MODE=mode, TORCH_TPU_CACHE_DIR="off")
    assert out.strip().endswith("right")


def test_families_name_sizes_bounds_and_padding(fused_mode):
    torch_tpu.clear_programs()
    w = ones(8, 4)
    for n in (20, 24, 28, 30, 50, 60):
        (torch.softmax(ones(n, 8) @ w, 0).mean(1) * 3).cpu()
    programs = [p for p in torch_tpu.fused.programs() if p["bound"]]
    assert {p["bound"] for p in programs} <= {64, 128}  # with room to grow; the next one early
    assert set(programs[0]["members"]) <= {20, 24, 28, 30, 50, 60}
    for program in programs[:1]:
        met = program["members"]
        asked = sum(size * times for size, times in met.items())
        done = program["bound"] * sum(met.values())
        assert program["padding"] == pytest.approx(done / asked)
        assert program["family"] == programs[0]["family"]
    family = next(f for f in torch_tpu.explain().families if f.bounds)
    assert family.bounds[0]["bound"] in (64, 128)
    assert family.runs == sum(p["runs"] for p in programs)
    assert 1 < family.padding < 4
    assert " in test_families_name_sizes_bounds_and_padding: (torch.softmax" in family.where
    assert f"{family.bounds[0]['bound']} (" in str(torch_tpu.explain())


def test_nothing_happened():
    assert "0 launches" in str(torch_tpu.explain())


def test_files(tmp_path):
    # Of functions compiled in other tests, which own their programs.
    held = {program.name for program in torch_tpu.explain().programs}
    torch.sin(ones(2))
    text = tmp_path / "a.txt"
    report = torch_tpu.explain(file=text, html=tmp_path / "a.html", programs=1)
    assert text.read_text(encoding="utf-8") == str(report) + "\n"
    into = io.StringIO()
    torch_tpu.explain(file=into)
    assert "aten::sin" in into.getvalue()
    report.write(tmp_path / "a.json")
    found = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert found == json.loads(report.to_json())
    assert found["summary"]["stats"]["launches"] == 1
    assert [p["name"] for p in found["programs"] if p["name"] not in held] == ["aten::sin"]


class Page(HTMLParser):
    """Elements, the embedded data, and whether all that was opened is closed."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: Any = None
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"] and self.tags[-1][1].get("id") == "data":
            self.data = json.loads(data)
        if self.open[-1:] == ["td"]:
            self.cells.append(data)


def parse(path: Any) -> tuple[Page, str]:
    text = path.read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page, text


def test_html(tmp_path):
    with torch_tpu.debug.record_launches():
        x = ones(UNSEEN)
        thread = threading.Thread(target=lambda: torch.sin(x))
        thread.start()
        thread.join()
        torch.sin(x).cpu()
    path = tmp_path / "report.html"
    report = torch_tpu.explain(html=path)
    page, text = parse(path)
    for tag, attributes in page.tags:  # self-contained
        assert not {"src", "href"} & set(attributes), tag
    assert "http://" not in text
    assert "https://" not in text
    assert "prefers-color-scheme: dark" in text
    assert page.data == json.loads(report.to_json())
    assert "aten::sin" in page.cells
    timeline = page.data["timeline"]
    rows = [dict(zip(timeline["columns"], row, strict=True)) for row in timeline["rows"]]
    kinds = [timeline["kinds"][row["kind"]] for row in rows]
    assert kinds.count("op_launch") == 2
    assert {"compile", "upload", "host_read", "miss"} <= set(kinds)
    launches = [r for r, kind in zip(rows, kinds, strict=True) if kind == "op_launch"]
    assert len({timeline["threads"][row["thread"]] for row in launches}) == 2
    fingerprint = next(p["fingerprint"] for p in page.data["programs"] if p["name"] == "aten::sin")
    for row in launches:
        assert timeline["texts"][row["text"]] == "aten::sin"
        assert timeline["programs"][row["program"]] == fingerprint
        assert row["duration"] > 0
    starts = [row["start"] for row in rows]
    assert max(starts) < page.data["summary"]["seconds"] * 1e6


def test_html_escapes(tmp_path):
    name = "</script><b>"
    exec(compile("import torch\ntorch.tan(x)", f"{name}.py", "exec"), {"x": ones(3)})
    path = tmp_path / "report.html"
    torch_tpu.explain(html=path)
    page, _ = parse(path)
    assert "b" not in [tag for tag, _ in page.tags]
    assert any(
        name in where for op in page.data["misses"] for c in op["changes"] for where in c["where"]
    )


def test_launches_are_recorded_only_on_request():
    torch.sin(ones(3))
    kinds = torch_tpu.explain().timeline["kinds"]
    assert "op_launch" not in kinds
    with torch_tpu.debug.record_launches():
        torch.sin(ones(3))
    torch.sin(ones(3))
    events = _C._journal_events()["events"]
    assert [row[0] for row in events].count("op_launch") == 1
    assert torch_tpu.stats()["launches"] == 3


def test_transfers_say_where_on_request():
    x = ones(3)
    x.cpu()
    with torch_tpu.debug.record_launches():
        x[0].item()
    texts = [row["text"] for row in torch_tpu.explain().reads]
    assert "copy to the host" in texts
    located = next(text for text in texts if text.startswith("item() at "))
    assert " in test_transfers_say_where_on_request: x[0].item()" in located


# At the end of a process, and from the command line

SCRIPT = """
import sys, torch
x = torch.ones(4).to("tpu")
print((x + 1).sum().item(), *sys.argv[1:])
"""


@pytest.mark.parametrize("name", ["report.html", "report.txt", "report.json"])
def test_at_exit(name, tmp_path, run_python):
    path = tmp_path / name
    out = run_python(
        "import torch_tpu\n" + SCRIPT, TORCH_TPU_EXPLAIN=str(path), TORCH_TPU_MODE="strict"
    )
    assert out.split()[0] == "8.0"
    assert "aten::add.Tensor" in path.read_text(encoding="utf-8")
    if name.endswith(".html"):
        page, _ = parse(path)
        assert "op_launch" in page.data["timeline"]["kinds"]


def test_at_exit_to_the_terminal():
    env = {**os.environ, "TORCH_TPU_EXPLAIN": "1"}
    code = "import torch_tpu\n" + SCRIPT
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "8.0\n"
    assert "TorchTPU, fused mode" in done.stderr


def test_bad_value_names_the_variable():
    env = {**os.environ, "TORCH_TPU_EXPLAIN": "somewhere"}
    code = [sys.executable, "-c", "import torch_tpu"]
    done = subprocess.run(code, env=env, capture_output=True, text=True)
    assert "TORCH_TPU_EXPLAIN" in done.stderr
    assert "somewhere" in done.stderr


def command(*arguments: str) -> int:
    return main(["explain", *arguments])


def test_command(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "sys.exit(3)\n", encoding="utf-8")
    argv = list(sys.argv)
    html = tmp_path / "a.html"
    assert command("--html", str(html), str(script), "--flag", "x") == 3
    out = capsys.readouterr().out
    assert out.startswith("8.0 --flag x\nTorchTPU, ")
    assert "op_launch" in parse(html)[0].data["timeline"]["kinds"]
    assert sys.argv == argv
    assert command("--json", "--output", str(tmp_path / "a.json"), str(script)) == 3
    found = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert found["summary"]["mode"] == "strict"
    assert not _C._journal_record("op_launch", False)  # put back


def test_command_reports_after_an_error(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "raise ValueError('oops')\n", encoding="utf-8")
    assert command(str(script)) == 1
    captured = capsys.readouterr()
    assert "oops" in captured.err
    assert "aten::add.Tensor" in captured.out
    assert command(str(tmp_path / "none.py")) == 2
