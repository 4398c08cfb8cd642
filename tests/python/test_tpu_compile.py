"""The runner behind `make tpu-compile-test`: children that crash or hang, resuming, the table.

With libtpu installed, some programs also go through the real TPU compiler.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conformance.children import Child
from conformance.tpu_compile import table
from conformance.tpu_compile.cases import CASES
from conformance.tpu_compile.children import python_child
from conformance.tpu_compile.compile import compile_all, read_answers
from conformance.tpu_compile.known import KNOWN
from conformance.tpu_compile.programs import PER_SIGNATURE, Store, signature_of
from conformance.tpu_compile.record import Recording

import torch_tpu
from torch_tpu.aot.process import last_words

# Does what the program's text says.
FAKE_COMPILER = """
import json, os, sys, time
for line in sys.stdin:
    task = json.loads(line)
    text = open(task["path"]).read()
    if "crash" in text:
        sys.stderr.write("F1115 07:00:00 tiling.cc:12] Check failed: rank > 0\\n")
        sys.stderr.flush()
        os.abort()
    if "hang" in text:
        time.sleep(60)
    answer = {"status": "ok"}
    if "refuse" in text:
        answer = {"status": "refused", "detail": "INTERNAL: no"}
    print(json.dumps({**task, **answer, "seconds": 0.5}), flush=True)
"""


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[], Child]:
    script = tmp_path / "fake.py"
    script.write_text(FAKE_COMPILER)
    return lambda: Child([sys.executable, str(script)], timeout=3.0)


def store_of(folder: Path, *texts: str) -> Store:
    store = Store(folder)
    for text in texts:
        assert store.add(text.split()[0], text, f"{text} @main(%a: tensor<2xf32>)", "explicit:x")
    return store


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_crash_and_a_hang_are_answers(fake, tmp_path, jobs):
    store = store_of(tmp_path / "p", "add ok", "mul crash", "sin hang", "sub refuse", "tan ok")
    results = tmp_path / "results.jsonl"
    answers = compile_all(store, list(store), results, "v5e", fake, jobs)
    found = {a["entry"]: (a["status"], a.get("detail", "")) for a in answers.values()}
    assert found["add"] == found["tan"] == ("ok", "")
    assert found["sub"] == ("refused", "INTERNAL: no")
    assert found["sin"] == ("hangs", "no answer in 3 s")
    assert found["mul"] == ("crashes", "the process ended with code -6: Check failed: rank > 0")
    assert len(results.read_text().splitlines()) == 5


def test_a_run_resumes(fake, tmp_path):
    store = store_of(tmp_path / "p", "add ok", "mul refuse")
    results = tmp_path / "results.jsonl"
    first = compile_all(store, list(store), results, "v5e", fake)
    # A kill in the middle of a line must not lose the others.
    with results.open("a") as file:
        file.write('{"key": "half')
    started = []

    def counted() -> Child:
        started.append(fake())
        return started[-1]

    assert compile_all(store, list(store), results, "v5e", counted) == first
    assert [child.starts for child in started] == [0]
    compile_all(store, list(store), results, "v5e", counted, again=True)
    assert started[-1].starts == 1
    assert len(read_answers(results, "v6e")) == 0, "another target has answers of its own"


def test_the_answer_after_a_half_line_is_kept(fake, tmp_path):
    store = store_of(tmp_path / "p", "add ok")
    results = tmp_path / "results.jsonl"
    results.write_text('{"key": "half')
    compile_all(store, list(store), results, "v5e", fake)
    assert [a["entry"] for a in read_answers(results, "v5e").values()] == ["add"]


def test_last_words():
    assert last_words("I start\nF1115 a.cc:1] Why\n@ 0x1 main\n") == "Why"
    assert last_words("one\n\nTypeError: two\n") == "TypeError: two"


def test_signature():
    text = (
        "func.func public @main(%a: tensor<2x3xf32>, %b: tensor<i64>) -> (tensor<2xcomplex<f64>>) {"
    )
    assert signature_of(text) == "complex<f64>,f32,i64"


def test_the_store_keeps_a_few_of_each_kind(tmp_path):
    store = Store(tmp_path)
    text = "@main(%a: tensor<{n}xf32>)"
    kept = [store.add("add", "add_", text.format(n=n), "opinfo:add") for n in range(5)]
    assert kept == [True] * PER_SIGNATURE + [False] * (5 - PER_SIGNATURE)
    assert store.add("add", "add", text.format(n=9), "large:add"), "those are always kept"
    assert not store.add("add", "add", text.format(n=9), "large:add"), "but once"
    again = Store(tmp_path)
    assert again.programs == store.programs
    assert not again.add("add", "add_", text.format(n=7), "opinfo:add")
    assert again.path(next(iter(again))).read_text().startswith("@main")


def answer(entry: str, signature: str, status: str = "ok", detail: str = "") -> dict[str, object]:
    return {
        "entry": entry,
        "signature": signature,
        "status": status,
        "detail": detail,
        "seconds": 0.25,
    }


def test_table(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "KNOWN", {"fft": {"f64": "no"}, "log": {"f64": "no"}})
    answers = [
        answer("add", "f32"),
        answer("add", "i64"),
        answer("fft", "f32"),
        answer("fft", "f64", "refused", "[PJRT_Compile] UNIMPLEMENTED: it says"),
        answer("mm", "i64", "crashes", "code -6"),
        answer("log", "f64"),
    ]
    found = table.make_table(["add", "fft", "mm", "log", "new"], answers)
    assert found["add"] == {
        "status": "ok",
        "programs": 2,
        "dtypes": ["f32", "i64"],
        "seconds": 0.5,
    }
    assert (found["fft"]["status"], found["fft"]["refused"]) == ("partly", {"f64": "no"})
    assert found["mm"]["status"] == "refused"
    assert table.surprises(found) == [
        "log (f64): compiles, but known.py says it does not",
        "mm (i64): the compiler crashes: code -6",
        "new: no program was recorded; add a call to cases.py",
    ]
    path = tmp_path / "table.json"
    table.write_table(found, "v5e", path)
    assert json.loads(path.read_text()) == {"target": "v5e", "entries": found}


def test_cases_and_known_name_table_entries():
    names = set(torch_tpu._C._op_names())
    assert not (CASES.keys() | KNOWN.keys()) - names


def test_forms():
    forms = torch_tpu._C._op_forms()
    assert forms["add_.Tensor"] == forms["add.out"] == forms["add.Tensor"] == "add.Tensor"


@pytest.mark.slow
def test_recording_keeps_what_ran(tmp_path):
    recording = Recording(tmp_path)
    tasks = [{"source": "explicit", "name": "clamp_max"}, {"source": "explicit", "name": "none"}]
    recording.run(tasks, timeout=120.0)
    found = {(p.entry, p.signature) for p in recording.store}
    assert {("clamp_max", "f32"), ("clamp_max", "bf16,f32")} <= found
    assert recording.done() == {"explicit:clamp_max", "explicit:none"}
    assert "KeyError" in recording.log.read_text()
    recording.forget("clamp*")
    assert "clamp_max" not in recording.store.entries()


def test_topologies_are_not_for_every_plugin():
    with pytest.raises(RuntimeError, match="UNIMPLEMENTED"):
        torch_tpu._C._Topology("v5e:2x2", "cpu")


# --- with the real compiler ----------------------------------------------------------------------

SITES = [s for s in os.environ.get("TORCH_TPU_TEST_SITE_PACKAGES", "").split(":") if s]
HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None or any(
    (Path(s) / "libtpu" / "libtpu.so").exists() for s in SITES
)
REPRESENTATIVE = (
    *("_embedding_bag_forward_only", "_native_batch_norm_legit_no_training", "clamp_max"),
    *("_native_multi_head_attention", "_upsample_lanczos2d_aa", "bmm.dtype", "conj_physical_"),
    *("pow_.Tensor", "randperm.generator", "sort.stable"),
)


@pytest.mark.libtpu
@pytest.mark.slow
@pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not installed")
def test_representative_programs_compile_for_v5e(tmp_path):
    recording = Recording(tmp_path)
    tasks = [{"source": "explicit", "name": name} for name in REPRESENTATIVE]
    recording.run(tasks, timeout=120.0)
    assert recording.store.entries() >= set(REPRESENTATIVE)
    answers = compiled_for_v5e(recording, list(recording.store))
    assert all(a["code_bytes"] > 0 for a in answers)


def compiled_for_v5e(recording, programs):
    def child() -> Child:
        return python_child("torch_tpu.aot.child", 120.0, "v5e:2x2", "tpu", *SITES)

    results = recording.folder / "results.jsonl"
    answers = compile_all(recording.store, programs, results, "v5e:2x2", child).values()
    assert not [(a["entry"], a.get("detail")) for a in answers if a["status"] != "ok"]
    return answers


@pytest.mark.libtpu
@pytest.mark.slow
@pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not installed")
@pytest.mark.parametrize(
    ("name", "scores"),
    [("attention_long", 2 * 8 * 1024 * 1024), ("attention_masked", 2 * 8 * 1001 * 700)],
)
def test_attention_does_not_hold_its_scores_on_v5e(tmp_path, name, scores):
    recording = Recording(tmp_path)
    recording.run([{"source": "large", "name": name}], timeout=120.0)
    programs = [p for p in recording.store if "attention" in p.entry]
    assert len(programs) == 4  # forward and backward, f32 and bf16
    for answer in compiled_for_v5e(recording, programs):
        assert answer["temp_bytes"] < 2 * scores, answer  # f32 scores would take twice that
