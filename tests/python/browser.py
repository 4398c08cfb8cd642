"""Looks at pages in a real browser: chromium, headless. A page of ours loads each of them in a
frame as wide as a desktop and as a phone, since a window cannot be made that narrow. A server on
this machine's own address gives out the pages and takes the answer."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTHS = (1280, 390)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")

# An element that reaches beyond the page is fine within one that scrolls by itself.
_HARNESS = """<!doctype html><meta charset="utf-8"><body><script>
const out = [];
function scrolls(one) {
  for (let e = one.parentElement; e; e = e.parentElement)
    if (getComputedStyle(e).overflowX !== "visible") return true;
  return false;
}
function measure(frame, url, width) {
  const page = frame.contentDocument, root = page.documentElement, wide = [];
  for (const one of page.body.querySelectorAll("*"))
    if (one.getBoundingClientRect().right > root.clientWidth + 1 && !scrolls(one))
      wide.push(one.tagName + "." + one.className);
  out.push({url, width, inner: frame.contentWindow.innerWidth, scroll: root.scrollWidth,
    client: root.clientWidth, text: page.body.innerText.length, wide: wide.slice(0, 5)});
}
function look(url, width) {
  return new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.style.cssText = `width:${width}px;height:900px;border:0`;
    frame.onload = () => setTimeout(() => {
      measure(frame, url, width);
      frame.remove();
      done();
    }, 30);
    frame.src = url;
    document.body.append(frame);
  });
}
(async () => {
  try {
    for (const url of URLS) for (const width of WIDTHS) await look(url, width);
    fetch("/done", {method: "POST", body: JSON.stringify(out)});
  } catch (error) {
    fetch("/done", {method: "POST", body: JSON.stringify(String(error))});
  }
})();
</script>"""


@dataclass
class Seen:
    """One page at one width."""

    url: str
    width: int
    inner: int
    scroll: int
    client: int
    text: int
    wide: list[str]


def look(folder: Path, pages: list[str], scratch: Path) -> tuple[list[Seen], list[str]]:
    """What the browser made of pages of `folder`, and what it said on its console."""
    answers: queue.Queue[object] = queue.Queue()
    harness = _HARNESS.replace("URLS", json.dumps(pages)).replace("WIDTHS", json.dumps(WIDTHS))

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/harness":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(harness.encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()
            answers.put(json.loads(body))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    log = scratch / "chromium.log"
    with log.open("w") as errors:
        browser = subprocess.Popen(
            [
                *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu"),
                *("--enable-logging=stderr", "--no-first-run", "--no-proxy-server"),
                *(f"--user-data-dir={scratch / 'profile'}", "--window-size=1400,1000"),
                *("--remote-debugging-port=0",),  # keeps it running
                f"http://127.0.0.1:{server.server_port}/harness",
            ],
            stderr=errors,
            stdout=errors,
        )
        try:
            answer = answers.get(timeout=120)
        finally:
            browser.terminate()
            browser.wait(30)
            server.shutdown()
    assert isinstance(answer, list), answer
    said = [line for line in log.read_text(errors="replace").splitlines() if ":CONSOLE" in line]
    return [Seen(**one) for one in answer], said


def check(folder: Path, pages: list[str], scratch: Path) -> None:
    """They show something, say no error, and are no wider than the window."""
    seen, said = look(folder, pages, scratch)
    assert not said
    assert len(seen) == 2 * len(pages)
    for one in seen:
        assert one.inner == one.width
        assert one.text > 100
        assert one.scroll <= one.client, f"{one.url} at {one.width}: {one.wide}"
        assert not one.wide, f"{one.url} at {one.width}: {one.wide}"
