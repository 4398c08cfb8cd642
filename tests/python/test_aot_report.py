"""Reports from stored answers of the compiler: the reader of modules, costs, padding, text, pages.
Nothing here needs libtpu."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from browser import check, needs_browser
from torch import nn

from torch_tpu import aot
from torch_tpu.aot import compiler, hlo
from torch_tpu.aot.costs import Part, analyse
from torch_tpu.aot.html import page
from torch_tpu.aot.loops import trip_count
from torch_tpu.aot.mxu import parse_profile
from torch_tpu.aot.origin import label_all
from torch_tpu.aot.padding import fix_of
from torch_tpu.aot.report import make_report, too_large
from torch_tpu.aot.text import compare
from torch_tpu.cli import main

DATA = Path(__file__).parent / "aot_data"


def compiled(name: str) -> compiler.Compiled:
    stored = json.loads((DATA / f"{name}.json").read_text())
    packed = DATA / f"{name}.pb.gz"
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else None

    def text(kind: str) -> str:
        file = DATA / f"{name}.{kind}.txt"
        return file.read_text() if file.exists() else ""

    return compiler.Compiled(
        stored["figures"],
        data or (DATA / f"{name}.pb").read_bytes(),
        stored["seconds"],
        stored["compiler"],
        stored["kinds"],
        text("profile"),
        text("live"),
    )


def attend(q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.fixture
def matmul() -> aot.Report:
    model = nn.Linear(1024, 1024, bias=False, device="meta", dtype=torch.bfloat16)
    x = torch.empty(1024, 1024, device="meta", dtype=torch.bfloat16)
    traced = aot.trace(model, (x,))
    return make_report(traced, aot.parse_topology("v5e:2x2"), compiled("matmul"), 0.1)


def test_the_reader_of_modules():
    module = hlo.parse_module(compiled("matmul").optimized)
    assert module.name == "Linear"
    opcodes = [i.opcode for i in module.entry.instructions]
    assert opcodes == ["parameter", "parameter", "copy-start", "copy-done", "fusion"] or set(
        opcodes
    ) == {"parameter", "copy-start", "copy-done", "fusion"}
    fusion = next(i for i in module.entry.instructions if i.opcode == "fusion")
    assert str(fusion.shape) == "bf16[1024,1024]"
    assert fusion.shape.order == (1, 0)
    assert fusion.shape.tiles == ((8, 128), (2, 1))
    assert fusion.shape.padded_bytes == fusion.shape.bytes == 2 << 20
    assert "aten::linear" in fusion.op_name


def test_damaged_modules_are_errors():
    data = compiled("matmul").optimized
    for bad in (b"", b"\xff" * 40, data[: len(data) // 2]):
        with pytest.raises((ValueError, IndexError)):
            hlo.parse_module(bad)


def test_padding_of_shapes():
    heads = hlo.Shape("bf16", 16, (8, 12, 1024, 64), (), (3, 2, 1, 0), ((8, 128), (2, 1)))
    assert heads.padded_dims == (8, 12, 1024, 128)
    assert heads.padded_bytes == 2 * heads.bytes
    assert "fills half of each tile; if it is a head dim" in fix_of(
        [8, 12, 1024, 64], [8, 12, 1024, 128], (3, 2, 1, 0)
    )
    counts = fix_of([1, 32, 2048], [1, 128, 2048], (1, 2, 0))  # of heads, not their width
    assert "head dim" not in counts
    assert "multiple of 128" in counts
    assert "vocabulary" in fix_of([768, 50257], [768, 50304], (1, 0))
    assert "below 8" in fix_of([2, 128], [8, 128], (1, 0))
    vmem = hlo.Shape("f32", 32, (8, 128), (), (1, 0), ((8, 128),), space=1)
    assert vmem.in_hbm == 0


def test_costs_of_a_product(matmul):
    assert matmul.flops == 2 * 1024**3
    assert matmul.compiler_costs["flops"] == pytest.approx(matmul.flops, rel=1e-3)
    assert matmul.bytes == 3 * 2 * 1024**2
    g = aot.parse_topology("v5e:2x2").generation
    fusion = matmul.parts[0]
    assert fusion.bound(g) == "compute"
    assert fusion.seconds(g) == pytest.approx(2 * 1024**3 / 197e12)
    assert matmul.seconds >= matmul.roofline_seconds


def test_mxu_use_is_that_of_the_dump(matmul):
    """The slots of packed products, and the few that are not packed, as a share of all."""
    fusion = next(p for p in matmul.parts if p.mxu is not None)
    lines = (DATA / "matmul.profile.txt").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"HLO: %{fusion.name} "))
    dump = {}
    for line in lines[at + 1 : at + 60]:
        if line.startswith(" - MXU_0 matmul"):
            dump[line.split(": ")[0]] = float(line.rsplit(" - ", 1)[1])
    assert dump[" - MXU_0 matmul_packed"] > 0.9
    assert abs(fusion.mxu - dump[" - MXU_0 matmul_packed"]) < 0.05
    assert fusion.mxu == pytest.approx(sum(dump.values()), abs=1e-4)
    assert 0.9 < matmul.mxu <= 1.0


def test_without_the_use_of_matrix_units(tmp_path):
    figures = compiled("matmul")
    figures.profile = ""
    model = nn.Linear(1024, 1024, bias=False, device="meta", dtype=torch.bfloat16)
    traced = aot.trace(model, (torch.empty(1024, 1024, device="meta", dtype=torch.bfloat16),))
    report = make_report(traced, aot.parse_topology("v5e:2x2"), figures, 0.0)
    assert report.mxu is None
    assert all(p.mxu is None for p in report.parts)
    assert "matrix units: - of their slots" in str(report)
    assert json.loads(report.to_json())["mxu"] is None
    report.html(tmp_path / "page.html")
    environment = compiler.environment(tmp_path, profile=False)
    assert "dump" not in environment.get("LIBTPU_INIT_ARGS", "")
    assert str(tmp_path) in environment["XLA_FLAGS"]


def test_blocks_of_one_instruction_are_added_up():
    text = [
        "HLO: %f = x",
        " - MXU_0 matmul: (5/10) - 0.5",
        "HLO: <no-hlo-instruction>",
        " - MXU_0 matmul: (9/9) - 1",
        "HLO: ROOT %f = x",
        " - MXU_0 matmul: (0/10) - 0",
        " - VMEM_SPILL_COUNT: (3/20) - 0.15",
    ]
    use = parse_profile(text)
    assert set(use) == {"f"}
    assert use["f"].mxu == 0.25
    assert use["f"].spills == 3


def test_hbm_figures_are_the_compilers(matmul):
    figures = compiled("matmul").figures
    assert matmul.hbm == {k: v for k, v in figures.items() if k.endswith("_bytes")} | {
        "limit": 16 << 30
    }
    in_hbm = figures["argument_bytes"] + figures["output_bytes"] + figures["temp_bytes"]
    # Of x a copy is fetched into VMEM, which is no HBM.
    assert sum(b.bytes for b in matmul.largest) == in_hbm == figures["peak_bytes"] - (2 << 20)
    assert {(b.kind, b.name) for b in matmul.largest} == {
        ("parameter", "weight"),
        ("input", "input0"),
        ("temporary", "aten::linear "),
    }


def test_the_largest_in_hbm_are_those_of_hbm():
    """Attention as a loop of the compiler's, which carries its sums in VMEM."""
    q = torch.empty(8, 12, 1024, 64, device="meta", dtype=torch.bfloat16)
    traced = aot.trace(attend, (q, q, q))
    report = make_report(traced, aot.parse_topology("v5e:2x2"), compiled("attend"), 0.1)
    assert [(b.kind, b.bytes) for b in report.largest if b.bytes > 1024] == [
        *[("input", 12 << 20)] * 3,
        ("temporary", 12 << 20),
    ]
    assert {b.name for b in report.largest if b.kind == "input"} == {"input0", "input1", "input2"}
    assert sum(b.bytes for b in report.largest) <= report.needed


def test_copies_say_what_they_copy(matmul):
    module = hlo.parse_module(compiled("matmul").optimized)
    assert {i.name: i.op_name for i in module.entry.instructions}["copy-start"] == ""
    label_all(module, [aot.Argument("parameter", "weight", torch.bfloat16, [1024, 1024])] * 2)
    names = {i.name: i.op_name for i in module.entry.instructions}
    assert names["copy-start"] == "copy of weight"
    assert names["copy-done"] == "weight"


def test_loops_count_as_often_as_they_run():
    module = hlo.parse_module(compiled("loop").optimized)
    loops = [
        trip_count(module, c, i)
        for c in module.computations.values()
        for i in c.instructions
        if i.opcode == "while"
    ]
    assert loops == [6, 6]
    costs = analyse(module, devices=4)
    # A layer of 256 x 512 on 128 rows: two products, one of them again, four in backward.
    assert costs.flops == 7 * 6 * 2 * 128 * 256 * 512
    assert costs.flops > compiled("loop").figures["flops"]
    gathers = [c for c in costs.collectives if c.kind == "all-gather"]
    assert sum(c.times for c in gathers) == 24  # two weights, forward and backward, six layers
    assert {c.group for c in gathers} == {4}
    assert sum(c.link_bytes for c in gathers) == 24 * 256 * 512 * 2 * 3 // 4


def test_what_stays_in_vmem_is_not_bound_by_memory():
    g = aot.parse_topology("v5e:2x2").generation
    inside = Part("fusion.1", "fusion", "", "f32[32,128]", 1, 0.0, 0, 1000)
    assert inside.bound(g) == "compute"
    assert inside.time(g) == 1000 / g.clock
    outside = Part("fusion.2", "fusion", "", "f32[32,128]", 1, 0.0, 16384, 0)
    assert outside.bound(g) == "memory"


def test_text_json_and_page(matmul):
    text = str(matmul)
    for words in ("HBM: fits", "compute", "aten::linear", "parameter  weight", "2.15 GFLOP"):
        assert words in text
    data = json.loads(matmul.to_json())
    assert data["fits"] is True
    assert data["parts"][0]["mxu"] > 0.9
    assert data["parts"][0]["bound"] == "compute"
    assert sum(p["seconds"] for p in data["parts"]) == pytest.approx(matmul.device_seconds)
    html = matmul.html()
    check_page(html)
    assert "Roofline" in html


def check_page(html: str) -> None:
    """Closes what it opens, and asks for no other file."""
    open_tags: list[str] = []
    free = {"meta", "th", "td", "tr", "li", "rect", "circle", "polyline", "text", "title", "thead",
            "tbody"}  # fmt: skip

    class Checker(HTMLParser):
        def handle_starttag(self, tag, attrs):
            assert not {"src", "href"} & {name for name, _ in attrs}
            if tag not in free:
                open_tags.append(tag)

        def handle_endtag(self, tag):
            if tag not in free:
                assert open_tags.pop() == tag

    Checker().feed(html)
    assert not open_tags
    assert "http" not in html.replace("https://openxla.org", "")


def test_a_model_that_does_not_fit(matmul):
    model = nn.Linear(65536, 65536, device="meta")
    traced = aot.trace(model, (torch.empty(8, 65536, device="meta"),))
    text = (
        "[PJRT_Compile] RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, "
        "the total memory required for HLO temporaries (16.75G) exceeds available HBM (15.75G)."
    )
    report = too_large(traced, aot.parse_topology("v5e:2x2"), text, (0.1, 2.0))
    assert not report.fits
    assert report.hbm == {"limit": int(15.75 * 2**30), "needed": int(16.75 * 2**30)}
    assert report.largest[0].name == "weight"
    assert "DOES NOT FIT" in str(report)
    assert "shard='fsdp'" in str(report)
    side_by_side = compare([matmul, report])
    assert "NO" in side_by_side
    check_page(page([matmul, report]))


@needs_browser
def test_pages_in_a_browser(matmul, tmp_path):
    """A report, and several side by side, one of them on what does not fit."""
    q = torch.empty(8, 12, 1024, 64, device="meta", dtype=torch.bfloat16)
    traced = aot.trace(attend, (q, q, q))
    where = aot.parse_topology("v5e:2x2")
    other = make_report(traced, where, compiled("attend"), 0.1)
    large = too_large(traced, where, "[PJRT_Compile] RESOURCE_EXHAUSTED: " + "words " * 80, (1, 2))
    matmul.html(tmp_path / "one.html")
    (tmp_path / "several.html").write_text(page([matmul, other, large]), encoding="utf-8")
    check(tmp_path, ["one.html", "several.html"], tmp_path)


@pytest.mark.parametrize(
    "name", ["v5e", "v5e:0x0", "v5e:3x5", "v6e-4", "trillium:2x2", "tpu7x:2x2", ""]
)
def test_unknown_topologies_list_the_known_ones(name):
    with pytest.raises(aot.AotError, match=r"no topology.*Known ones: .*2x2") as error:
        aot.parse_topology(name)
    assert name in str(error.value)


def test_a_generation_alone_lists_its_own():
    with pytest.raises(aot.AotError, match=r"Known ones: v5e:1x1, v5e:2x2") as error:
        aot.parse_topology("v5e")
    assert "v6e" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "first"),
    [("ironwood", "tpu7x:2x2x1"), ("Trillium:2x2", "v6e:1x1"), ("v5litepod-4", "v5e:1x1")],
)
def test_other_names_of_generations_are_known(name, first):
    with pytest.raises(aot.AotError, match=f"no topology '{name}'. Known ones: {first}"):
        aot.parse_topology(name)


def test_every_known_topology_is_one():
    for name in aot.known_topologies():
        assert aot.parse_topology(name).devices >= 1


# --- the child ----------------------------------------------------------------------------------


FAKE = """
import json, os, signal, sys, time
task = json.loads(sys.stdin.readline())
text = open(task["path"]).read()
if "hang" in text: time.sleep(60)
for name in ("SIGABRT", "SIGFPE", "SIGKILL"):
    if name in text:
        sys.stderr.write("F1115 tiling.cc:12] Check failed: rank > 0\\n"); sys.stderr.flush()
        os.kill(os.getpid(), getattr(signal, name))
detail = "INTERNAL: no"
if "blocks" in text: detail = "RESOURCE_EXHAUSTED: Allocation (size=2) would exceed, space=vmem"
if "broken" in text: detail = "[Plugin::load] NOT_FOUND: no file."
print(json.dumps({**task, "status": "refused", "detail": detail}), flush=True)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    started = []

    class Fake(compiler.Child):
        def __init__(self, command, timeout, env):
            assert env["TPU_SKIP_MDS_QUERY"] == "1"
            super().__init__([sys.executable, str(script)], timeout, env)

        def _start(self):
            process = super()._start()
            started.append(process)
            return process

    monkeypatch.setattr(compiler, "Child", Fake)
    return started


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("SIGABRT", aot.CompilerCrashError, "died .SIGABRT.*rank > 0.*try another topology"),
        ("SIGFPE", aot.CompilerCrashError, "died .SIGFPE"),
        ("SIGKILL", aot.CompilerCrashError, "killed .SIGKILL.*want of memory.*--scan"),
        ("broken", aot.AotError, "libtpu cannot be loaded.*no file.*torch-tpu doctor"),
        ("hang", aot.CompilerTimeoutError, "no answer.*timeout="),
        ("refuse", aot.AotError, "refuses the program for v5e:2x2: INTERNAL: no"),
        ("blocks", aot.AotError, "not fit into the VMEM of v5e:2x2.*block_specs.*RESOURCE"),
    ],
)
def test_the_child_is_always_reaped(fake, text, error, words):
    topology = aot.parse_topology("v5e:2x2")
    with pytest.raises(error, match=words):
        compiler.compile_text(text, topology, timeout=2.0, plugin="fake")
    assert fake[0].returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(fake[0].pid, 0)


def test_the_bar_shows_the_time_and_goes_away(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = compiler.ElapsedBar("compiling for v5e:2x2")
    bar.tick(75.0)
    shown = capsys.readouterr().err
    assert "compiling for v5e:2x2  1:15" in shown
    bar.close()
    assert capsys.readouterr().err.strip() == ""
    bar.close()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    compiler.ElapsedBar("quiet").tick(100.0)
    assert capsys.readouterr().err == ""


def test_a_child_ends_with_its_parent(tmp_path):
    """However the parent ends."""
    code = (
        "import os, sys, signal, time\n"
        "from torch_tpu.aot.process import Child\n"
        "child = Child([sys.executable, '-c', 'from torch_tpu.aot.process import end_with_parent;"
        "end_with_parent(); import time; print(1, flush=True); time.sleep(60)'], 30)\n"
        "child.run({})\n"
        "print(child.process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    pid = int(done.stdout)
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("it lives on")


def test_a_command_that_is_terminated_leaves_nothing(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "require_libtpu", lambda *_: None)
    monkeypatch.setattr(aot, "require_libtpu_or_site", lambda: None)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(compiler.tempfile, "tempdir", str(scratch))
    script = tmp_path / "model.py"
    script.write_text(
        "import torch\ndef hang(x): return x + 1\ndef build(): return hang, (torch.ones(8),)\n"
    )

    def terminate():
        while not (fake and any(scratch.iterdir())):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    with pytest.raises(SystemExit) as end:
        main(["aot", f"{script}:build"])
    thread.join()
    assert end.value.code == 143
    assert fake[0].returncode is not None
    assert not any(scratch.iterdir())


def test_libtpu_missing_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TORCH_TPU_TEST_SITE_PACKAGES", raising=False)
    with pytest.raises(aot.AotError, match=r"pip install torchtpu\[tpu\]"):
        aot.compile(nn.Linear(2, 2), (torch.zeros(1, 2),))
    script = tmp_path / "model.py"
    script.write_text(BUILD)
    assert main(["aot", f"{script}:build"]) == 2
    assert "pip install torchtpu[tpu]" in capsys.readouterr().err


BUILD = """
import torch
def build():
    return torch.nn.Linear(2, 2), (torch.zeros(1, 2),)
def nothing():
    return 3
def raises():
    raise KeyError("x")
def no_tuple():
    return torch.nn.Linear(2, 2), torch.zeros(1, 2)
class Wrong(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x)
def wrong():
    return Wrong(2, 2), (torch.zeros(1, 3),)
def reads():
    return (lambda x: x + x.sum().item()), (torch.zeros(1, 3),)
"""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["{s}:build", "--topology", "v9:2x2"], "no topology 'v9:2x2'. Known ones: v4:2x2x1"),
        (["{s}"], "SCRIPT:FUNCTION"),
        (["nowhere.py:build"], "no script nowhere.py"),
        (["{s}:other"], "no function other"),
        (["{s}:nothing"], "must return (model, args)"),
        (["{s}:raises"], "raised KeyError"),
        (["{s}:no_tuple"], "must be a tuple"),
        (["{s}:build", "--html", "/no/folder/x.html"], "is no folder"),
        (["{s}:build", "--json", "/no/folder/x.json"], "is no folder"),
        (["{s}:build", "--html", "{d}"], "is a folder: say which file"),
        (["{s}:build", "--pack", "{d}"], "is a folder: say which file"),
        (["{s}:build", "--topology", ""], "no topology ''"),
    ],
)
def test_bad_input_on_the_command_line(args, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(aot, "require_libtpu_or_site", lambda: None)
    script = tmp_path / "model.py"
    script.write_text(BUILD)
    assert main(["aot", *(a.format(s=script, d=tmp_path) for a in args)]) == 2
    out = capsys.readouterr()
    assert words in out.err
    assert "Traceback" not in out.err
    assert len(out.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("build", "words", "line", "step"),
    [
        ("wrong", "RuntimeError: mat1 and mat2 shapes", "return super().forward(x)", "on the CPU"),
        ("reads", "only being recorded", "x.sum().item()", "`torch_tpu.lint` names all"),
    ],
)
def test_a_model_that_cannot_be_traced(build, words, line, step, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(aot, "require_libtpu_or_site", lambda: None)
    script = tmp_path / "model.py"
    script.write_text(BUILD)
    assert main(["aot", f"{script}:{build}"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert words in said[0]
    number = 1 + next(i for i, text in enumerate(BUILD.splitlines()) if line in text)
    assert f"at {script}:{number} in " in said[1]
    assert step in said[2]
    assert len(said) == 3


def test_a_time_limit_below_zero_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["aot", "model.py:build", "--timeout", "-1"])
    assert "expected a number above 0" in capsys.readouterr().err
