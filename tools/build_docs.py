"""Builds the documentation as a static site that needs no network: README, docs/*.md and the
tutorials of examples/tutorials.

Usage: python tools/build_docs.py [OUTPUT]   (default: build/docs)
"""

from __future__ import annotations

import ast
import html
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parent.parent
ASSETS = Path(__file__).resolve().parent / "docs_site"

# The order of the navigation. Pages of docs/ that are named nowhere come last, under "More".
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("README", "install", "first_steps", "troubleshooting"),
    "Tutorials": (),  # all of examples/tutorials
    "Use": (
        *("modes", "fused", "compile", "dynamic_shapes", "control_flow", "distributed"),
        *("huggingface", "kernels", "aot", "lint", "export", "caches", "interop"),
    ),
    "Frameworks": ("lightning", "torchtitan", "restarts"),
    "Look": ("cli", "compare", "explain", "profiler", "benchmarks"),
    "Reference": ("operators", "environment"),
    "Inside": ("architecture", "add_an_op", "CONTRIBUTING"),
}
_HEADING = re.compile(r"h[1-6]")


@dataclass
class Page:
    """One page: where it comes from, and what became of it."""

    name: str  # of the file, without its suffix
    source: Path
    text: str  # Markdown
    title: str = ""
    body: str = ""
    headings: list[tuple[int, str, str]] = field(default_factory=list)  # level, anchor, text
    search: list[tuple[str, str, str]] = field(default_factory=list)  # anchor, heading, text

    @property
    def url(self) -> str:
        return "index.html" if self.name == "README" else f"{self.name.lower()}.html"


def slug(text: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text).lower().replace(" ", "-")


def tutorial(source: Path) -> str:
    """A script as Markdown: its docstring, then code, with prose from comments that begin with a
    heading (`# ## What it does`)."""
    text = source.read_text(encoding="utf-8")
    tree = ast.parse(text)
    intro = ast.get_docstring(tree) or source.stem
    lines = text.splitlines()[tree.body[0].end_lineno :] if ast.get_docstring(tree) else []
    shown = source.relative_to(ROOT)
    out = [intro, "", "```bash", f"python {shown}", "```", ""]
    code: list[str] = []

    def flush() -> None:
        if "\n".join(code).strip():
            out.extend(["```python", "\n".join(code).strip("\n"), "```", ""])
        code.clear()

    prose = False
    for line in lines:
        if line.startswith("# ## "):
            flush()
            prose = True
        elif not line.startswith("#"):
            prose = False
        if prose:
            out.append(line[2:])
            continue
        if out and out[-1].strip() and not code:
            out.append("")
        code.append(line)
    flush()
    return "\n".join(out)


def pages() -> list[Page]:
    """All of them, their text read."""
    out = [Page("README", ROOT / "README.md", "")]
    out += [Page(path.stem, path, "") for path in sorted((ROOT / "docs").glob("*.md"))]
    out.append(Page("CONTRIBUTING", ROOT / "CONTRIBUTING.md", ""))
    for page in out:
        page.text = page.source.read_text(encoding="utf-8")
    for path in sorted((ROOT / "examples" / "tutorials").glob("*.py")):
        out.append(Page(f"tutorial_{path.stem}", path, tutorial(path)))
    return out


def code_block(content: str, info: str) -> str:
    """Colours by class, so that a theme can change them."""
    language = info.partition(" ")[0]
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return highlight(content, lexer, HtmlFormatter(cssclass="code"))


class _Html(RendererHTML):
    """A method is the rule for the tokens of its name."""

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return code_block(tokens[idx].content, tokens[idx].info)

    def table_open(self, *_: object) -> str:
        return '<div class="scroll"><table>\n'

    def table_close(self, *_: object) -> str:
        return "</table></div>\n"


class Renderer:
    """Markdown to HTML, with anchors, links between pages, and words for the search."""

    def __init__(self, everything: list[Page]) -> None:
        self._by_source = {page.source.resolve(): page for page in everything}
        self._markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        self._renderer = _Html()

    def render(self, page: Page) -> None:
        """Fills in the page."""
        text = re.sub(r"<!--.*?-->\n?", "", page.text, flags=re.S)
        tokens = self._markdown.parse(text)
        anchor, heading, words = "", "", list[str]()
        for at, token in enumerate(tokens):
            if token.type == "heading_open":
                content = "".join(t.content for t in tokens[at + 1].children or ())
                if words:
                    page.search.append((anchor, heading, " ".join(words)))
                anchor, heading, words = slug(content), content, []
                token.attrSet("id", anchor)
                page.headings.append((int(token.tag[1]), anchor, content))
                page.title = page.title or content
            elif token.type == "inline":
                self._links(token, page)
                words.append(" ".join(t.content for t in token.children or () if t.content))
        page.search.append((anchor, heading, " ".join(words)))
        page.body = self._renderer.render(tokens, self._markdown.options, {})

    def _links(self, token: Token, page: Page) -> None:
        """Links to other pages of the tree lead to their pages here; other files have none."""
        inside = False
        for child in token.children or ():
            if child.type == "link_open":
                target = self._target(str(child.attrGet("href")), page)
                inside = target is None
                if target is None:
                    child.tag = "span"
                    child.attrs = {"class": "file"}
                else:
                    child.attrSet("href", target)
            elif child.type == "link_close" and inside:
                child.tag = "span"
                inside = False

    def _target(self, href: str, page: Page) -> str | None:
        parts = urlsplit(href)
        if parts.scheme or not parts.path:
            return href
        other = self._by_source.get((page.source.parent / parts.path).resolve())
        if other is None:
            return None
        return other.url + (f"#{parts.fragment}" if parts.fragment else "")


def navigation(everything: list[Page], current: Page) -> str:
    """The links at the side."""
    by_name = {page.name: page for page in everything}
    groups = {
        title: [by_name[name] for name in names if name in by_name]
        for title, names in SECTIONS.items()
    }
    groups["Tutorials"] = [page for page in everything if page.name.startswith("tutorial_")]
    named = {page.name for group in groups.values() for page in group}
    groups["More"] = [page for page in everything if page.name not in named]
    out = []
    for title, group in groups.items():
        if not group:
            continue
        items = "".join(
            f'<li><a href="{page.url}"{" aria-current=page" if page is current else ""}>'
            f"{html.escape(page.title)}</a></li>"
            for page in group
        )
        out.append(f"<h2>{title}</h2><ul>{items}</ul>")
    return "".join(out)


def document(page: Page, everything: list[Page]) -> str:
    """The whole file."""
    inner = [(anchor, text) for level, anchor, text in page.headings if level == 2]
    contents = "".join(f'<li><a href="#{a}">{html.escape(t)}</a></li>' for a, t in inner)
    layout = (ASSETS / "layout.html").read_text(encoding="utf-8")
    parts = {
        "title": html.escape(page.title),
        "navigation": navigation(everything, page),
        "contents": f"<h2>On this page</h2><ul>{contents}</ul>" if len(inner) > 1 else "",
        "body": page.body,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], layout)


def build(output: Path) -> list[Page]:
    """Writes the site, a new folder each time."""
    everything = pages()
    renderer = Renderer(everything)
    for page in everything:
        renderer.render(page)
    if output.exists():
        shutil.rmtree(output)
    output.mkdir(parents=True)
    for page in everything:
        (output / page.url).write_text(document(page, everything), encoding="utf-8")
    light = HtmlFormatter(style="default", cssclass="code").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark", cssclass="code").get_style_defs(
        ':root[data-theme="dark"] .code'
    )
    style = (ASSETS / "site.css").read_text(encoding="utf-8")
    (output / "site.css").write_text(f"{light}\n{dark}\n{style}", encoding="utf-8")
    index = [
        {"url": page.url + (f"#{anchor}" if anchor else ""), "page": page.title,
         "heading": heading, "text": text}
        for page in everything
        for anchor, heading, text in page.search
    ]  # fmt: skip
    script = (ASSETS / "site.js").read_text(encoding="utf-8")
    data = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    (output / "site.js").write_text(f"const INDEX = {data};\n{script}", encoding="utf-8")
    return everything


def main(arguments: list[str]) -> int:
    """Builds into the folder given."""
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print(__doc__, file=sys.stderr)
        return 2
    output = Path(arguments[0]) if arguments else ROOT / "build" / "docs"
    if output.exists() and not (output / "site.js").is_file():
        print(f"{output} is there and is no site of ours; give another folder", file=sys.stderr)
        return 2
    built = build(output)
    print(f"wrote {len(built)} pages: open {output / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
