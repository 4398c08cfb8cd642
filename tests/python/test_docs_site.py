"""The documentation's site: complete, its links lead somewhere, and a browser shows it and our
reports without complaint, on a desktop and on a phone. The tutorials run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
import torch
from browser import check, look, needs_browser

import torch_tpu
from torch_tpu._compare import html
from torch_tpu._compare.measure import Row, Settings

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
WANTED = (
    *("index", "install", "first_steps", "modes", "compile", "operators", "environment"),
    *("troubleshooting", "cli", "compare", "profiler", "explain", "caches", "lint"),
    *("distributed", "kernels", "aot"),
)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_docs", ROOT / "tools" / "build_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_docs"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("markdown_it")
    pytest.importorskip("pygments")
    folder = tmp_path_factory.mktemp("site") / "docs"
    assert generator().main([str(folder)]) == 0
    return folder


class Links(HTMLParser):
    """Targets and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name == "id" and value:
                assert value not in self.anchors, f"two of {value}"
                self.anchors.add(value)


def test_pages_are_there(site: Path) -> None:
    names = {page.stem for page in site.glob("*.html")}
    assert set(WANTED) <= names
    assert {f"tutorial_{path.stem}" for path in TUTORIALS} <= names
    assert {path.stem.lower() for path in (ROOT / "docs").glob("*.md")} <= names


def test_links(site: Path) -> None:
    pages = {page.name: Links(page.read_text(encoding="utf-8")) for page in site.glob("*.html")}
    for name, links in pages.items():
        for target in links.targets:
            assert not target.startswith("/"), f"{name}: {target}"
            if re.match(r"(https?|mailto|data):", target):
                continue
            file, _, anchor = target.partition("#")
            assert (site / (file or name)).is_file(), f"{name}: no {target}"
            if anchor and (file or name) in pages:
                assert anchor in pages[file or name].anchors, f"{name}: no heading {target}"


def test_nothing_comes_from_the_network(site: Path) -> None:
    for page in site.glob("*.html"):
        links = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]+)"', page.read_text())
        assert not [link for link in links if link.startswith(("http", "//"))], page.name


def test_every_page_is_in_the_navigation(site: Path) -> None:
    navigation = re.search(r"<nav.*?</nav>", (site / "index.html").read_text(), re.S)
    assert navigation is not None
    assert set(Links(navigation[0]).targets) == {page.name for page in site.glob("*.html")}


def test_search_index(site: Path) -> None:
    text = (site / "site.js").read_text(encoding="utf-8")
    index = json.loads(text.partition("const INDEX = ")[2].partition(";\n")[0])
    assert any("doctor" in entry["text"] for entry in index)
    for entry in index:
        assert (site / entry["url"].partition("#")[0]).is_file()


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("markdown_it")
    assert generator().main(["--help"]) == 2
    (tmp_path / "mine.txt").write_text("precious")
    assert generator().main([str(tmp_path)]) == 2
    assert (tmp_path / "mine.txt").exists()
    assert "no site of ours" in capsys.readouterr().err


@pytest.mark.parametrize("script", TUTORIALS, ids=[path.stem for path in TUTORIALS])
def test_tutorial_runs(script: Path, tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    code = f"import torch_tpu, runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# In a browser


@needs_browser
def test_the_browser_sees_what_is_wrong(tmp_path: Path) -> None:
    """So that the tests below can fail."""
    wide = "<!doctype html><div style='width:700px'>wide</div><script>fail()</script>"
    (tmp_path / "wide.html").write_text(wide)
    (desktop, phone), said = look(tmp_path, ["wide.html"], tmp_path)
    assert desktop.scroll <= desktop.client
    assert phone.scroll > phone.client
    assert phone.wide == ["DIV."]
    assert "fail is not defined" in said[0]


@needs_browser
def test_site_in_a_browser(site: Path, tmp_path: Path) -> None:
    check(site, sorted(page.name for page in site.glob("*.html")), tmp_path)


@needs_browser
def test_reports_in_a_browser(tmp_path: Path) -> None:
    x = torch.randn(16, 16, device="tpu")
    for size in (8, 9, 10):
        (x[:size] @ x).sum().item()
    torch_tpu.explain(html=tmp_path / "explain.html")
    rows = [
        Row(
            device=device,
            device_name="An accelerator with a name that is rather long, as they are",
            torch="2.13.0+cpu",
            source="optimizer",
            steps=40,
            first_step=2.0,
            steps_per_second=1000.0 * scale,
            latencies=[0.001 / scale * (1 + n % 7 / 10) for n in range(40)],
            percentiles={"p50": 0.001, "p90": 0.002, "p99": 0.003},
            host_peak_bytes=1 << 29,
            device_peak_bytes=1 << 28,
            joules_per_step={"cpu": 1.5, "gpu 0": 3.25},
            tokens_per_second=1e5,
            cost_per_million_tokens=0.0123,
            currency="USD",
        )
        for device, scale in (("cpu", 1.0), ("cuda", 3.0), ("tpu", 4.0))
    ]
    rows.append(Row("tpu:7", failure="not available: " + "a_long_word_without_a_space" * 12))
    page = tmp_path / "compare.html"
    page.write_text(html.page(rows, Settings(Path("train.py"), [])), encoding="utf-8")
    check(tmp_path, ["explain.html", "compare.html"], tmp_path)
