"""The documentation: its Python runs, its excerpts and paths are those of this tree, its links lead
somewhere. Tags of code blocks:

    python                  run in a fresh interpreter
    python skip: REASON     not run
    text output             what the Python block before it prints
    LANGUAGE csrc/a.cpp     an excerpt, found in that file but for white space
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import torch_tpu

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
LANGUAGES = ("python", "cpp", "bash", "text")
FOLDERS = "csrc|torch_tpu|tests|docs|examples|tools|requirements|benchmarks|.ci"
PATH = re.compile(rf"(?:{FOLDERS})/[\w./*-]*")
FENCE = re.compile(r"\s*```(.*)")


@dataclass(frozen=True)
class Block:
    """A fenced code block."""

    page: Path
    line: int
    tag: str
    text: str
    output: str | None = None

    @property
    def language(self) -> str:
        return self.tag.partition(" ")[0]

    @property
    def rest(self) -> str:
        return self.tag.partition(" ")[2].strip()

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def dedent(lines: list[str], indent: int) -> str:
    return "".join(line[indent:] if line.strip() else "\n" for line in lines)


def read(page: Path) -> tuple[list[Block], list[tuple[int, str]]]:
    """The code blocks of a page, and its other lines with their numbers."""
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    tag: str | None = None
    start, indent, inside = 0, 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(True), start=1):
        fence = FENCE.match(line)
        if fence is None:
            if tag is None:
                prose.append((number, line))
            else:
                inside.append(line)
        elif tag is None:
            tag, start, inside = fence[1].strip(), number, []
            indent = len(line) - len(line.lstrip())
        else:
            text = dedent(inside, indent)
            if tag == "text output":
                before = blocks.pop()
                blocks.append(Block(page, before.line, before.tag, before.text, output=text))
            else:
                blocks.append(Block(page, start, tag, text))
            tag = None
    assert tag is None, f"{page}:{start}: the code block does not end"
    return blocks, prose


def spans(page: Path) -> Iterator[tuple[int, str]]:
    """What stands between backticks in the text of a page."""
    for number, line in read(page)[1]:
        for span in re.findall(r"`([^`]+)`", line):
            yield number, span


BLOCKS = [block for page in PAGES for block in read(page)[0]]
EXCERPTS = [b for b in BLOCKS if PATH.fullmatch(b.rest)]
SNIPPETS = [b for b in BLOCKS if b.language == "python" and not b.rest]


def ids(blocks: list[Block]) -> list[str]:
    return [block.where for block in blocks]


pages = pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])


# Code blocks


@pytest.mark.parametrize("block", BLOCKS, ids=ids(BLOCKS))
def test_tag(block):
    assert block.language in LANGUAGES, f"{block.where}: unknown language {block.language!r}"
    if block.output is not None:
        assert block in SNIPPETS, f"{block.where}: output of something that is not run"
    if block.rest and block not in EXCERPTS:
        assert block.language == "python"
        assert re.match(r"skip: \w", block.rest), f"{block.where}: not run, and no reason is given"


def test_there_is_something_to_run():
    assert len([b for b in SNIPPETS if b.page.name == "README.md"]) >= 2
    assert len(SNIPPETS) >= 8


@pytest.mark.parametrize("block", SNIPPETS, ids=ids(SNIPPETS))
def test_snippet_runs(block, tmp_path):
    if re.search(r"\bJAX\b|import jax", block.text):
        pytest.importorskip("jax")
    (tmp_path / "snippet.py").write_text(block.text, encoding="utf-8")
    installed = bool(entry_points(group="torch.backends", name="torch_tpu"))
    code = "import runpy, sys; runpy.run_path('snippet.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code if installed else f"import torch_tpu; {code}"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{block.where}:\n{done.stdout}{done.stderr}"
    if block.output is not None:
        assert done.stdout == block.output, block.where


def clean_environment() -> dict[str, str]:
    """As a user has it who has set nothing but the plugin."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TORCH_TPU_") or name == "TORCH_TPU_PLUGIN"
    }
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": path}


@pytest.mark.parametrize("block", EXCERPTS, ids=ids(EXCERPTS))
def test_excerpt_is_in_the_file(block):
    def squeeze(text: str) -> str:
        return re.sub(r",(?=[)\]}])", "", re.sub(r"\s", "", text))

    source = (ROOT / block.rest).read_text(encoding="utf-8")
    assert squeeze(block.text) in squeeze(source), f"{block.where}: not in {block.rest}"


# Links, paths and names


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = [line.lstrip("#").strip() for _, line in read(page)[1] if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pages
def test_links(page):
    for number, line in read(page)[1]:
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            other = page.parent / name if name else page
            assert other.exists(), f"{page.name}:{number}: no file {target}"
            if anchor:
                assert anchor in anchors(other), f"{page.name}:{number}: no heading {target}"


@pages
def test_paths(page):
    named = list(spans(page))
    for block in read(page)[0]:
        if block.language == "bash":
            words = re.findall(r"[^\s\"']+", block.text)
            named += [(block.line, word.partition("::")[0]) for word in words]
        elif block in EXCERPTS:
            named.append((block.line, block.rest))
    for number, path in named:
        if PATH.fullmatch(path):
            found = list(ROOT.glob(path)) if "*" in path else (ROOT / path).exists()
            assert found, f"{page.name}:{number}: no {path}"


@pages
def test_make_targets(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    commands = [(b.line, b.text) for b in read(page)[0] if b.language == "bash"]
    for number, text in [*spans(page), *commands]:
        for target in re.findall(r"^make ([a-z-]+)", text, re.M):
            assert target in targets, f"{page.name}:{number}: no `make {target}`"


@pages
def test_variables(page):
    known = {row["name"] for row in torch_tpu._C._env_table()}
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        for name in re.findall(r"\bTORCH_TPU_[A-Z_]+\b", line):
            if name.startswith("TORCH_TPU_TEST_") or name == "TORCH_TPU_":
                continue
            assert name in known, f"{page.name}:{number}: no variable {name}"


@pages
def test_python_names(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, span in spans(page):
        match = re.fullmatch(r"(torch_tpu|torch\.tpu)((?:\.\w+)+)(?:\(.*\))?", span)
        if match is None:
            continue
        if lines[number - 1].startswith(f"| `{span}` | not here |"):
            continue  # a row of a table of names; test_peer_names.py walks it
        found = importlib.import_module("torch_tpu" if match[1] == "torch_tpu" else "torch_tpu.tpu")
        for name in match[2].split(".")[1:]:
            assert hasattr(found, name), f"{page.name}:{number}: no {span}"
            found = getattr(found, name)


def test_first_screen_of_the_readme():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    screen = "\n".join(lines[:30])
    assert "make demo" in screen
    assert "make test" in screen
    first = next(b for b in SNIPPETS if b.page.name == "README.md")
    assert first.line < 20
    assert len(first.text.splitlines()) == 6
    assert any(line.startswith("| mode ") for line in lines[:40])


def test_architecture_lists_the_layers_in_order():
    order = runpy.run_path(str(ROOT / "tools" / "check_layering.py"))["ORDER"]
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = re.findall(r"^\| `csrc/(\w+)` \|", text, re.M)
    rooms = re.findall(r"^\| `csrc/(\w+/\w+)` \|", text, re.M)
    assert folders == [layer for layer in order if "/" not in layer]
    assert rooms == [layer for layer in order if "/" in layer]
    assert set(folders) == {p.name for p in (ROOT / "csrc").iterdir() if p.is_dir()}
    assert set(rooms) == {
        f"dispatch/{p.name}" for p in (ROOT / "csrc/dispatch").iterdir() if p.is_dir()
    }
