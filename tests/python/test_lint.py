"""Hints: each rule at the right line, with a cost and a fix, and the model left alone."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_tpu
from torch_tpu import aot
from torch_tpu.cli import main


def line_of(function, words: str) -> int:
    """The number of the line of a function that has these words."""
    import inspect

    source, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(source) if words in line)


def rules(found) -> set[str]:
    return {f.rule for f in found}


def only(found, rule: str):
    matching = [f for f in found if f.rule == rule]
    assert len(matching) == 1, found
    return matching[0]


def test_a_clean_model_has_no_hints():
    model = nn.Linear(512, 1024, dtype=torch.bfloat16)
    found = torch_tpu.lint(model, (torch.zeros(64, 512, dtype=torch.bfloat16),))
    assert len(found) == 0
    assert str(found) == "nothing to say"


def attend(x):
    q = x.unflatten(-1, (12, 64)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q)


def test_head_dims():
    found = torch_tpu.lint(attend, (torch.zeros(8, 1024, 768, dtype=torch.bfloat16),))
    hint = only(found, "head_dim")
    assert hint.file == __file__
    assert hint.line == line_of(attend, "scaled_dot_product")
    assert hint.source == "return F.scaled_dot_product_attention(q, q, q)"
    # Four arrays of 8x12x1024 rows, each filled up by 64 elements of two bytes.
    assert hint.cost_bytes == 4 * 8 * 12 * 1024 * 64 * 2
    assert "heads of 128" in hint.fix
    wide = torch.zeros(8, 1024, 6, 128, dtype=torch.bfloat16).transpose(1, 2)
    assert not rules(torch_tpu.lint(F.scaled_dot_product_attention, (wide, wide, wide)))


def test_tiles():
    model = nn.Linear(768, 50257, bias=False, dtype=torch.bfloat16)
    hint = only(torch_tpu.lint(model, (torch.zeros(64, 768, dtype=torch.bfloat16),)), "tile")
    assert "pad the vocabulary: 50257 -> 50304" in hint.fix
    flops = 2 * 64 * 768 * (50304 - 50257)
    assert hint.cost_seconds == pytest.approx(flops / 197e12)
    small = torch.zeros(3, 768, dtype=torch.bfloat16)
    hint = only(torch_tpu.lint(nn.Linear(768, 128, dtype=torch.bfloat16), (small,)), "tile")
    assert "batch" in hint.fix
    assert "3 -> 8" in hint.fix
    assert "62.5% of the work is padding" in hint.message


def test_f32():
    x = torch.zeros(512, 512)
    hint = only(torch_tpu.lint(nn.Linear(512, 512), (x,)), "f32")
    assert "6 passes" in hint.message
    assert "autocast" in hint.fix
    assert hint.cost_seconds >= 5 * 2 * 512**3 / 197e12
    with torch.device("meta"):
        half = nn.Linear(512, 512).to(torch.bfloat16)
    assert "f32" not in rules(torch_tpu.lint(half, (x.bfloat16(),)))


def reads(x):
    total = x.sum()
    if total > 0:
        x = x + 1
    print("loss", total.item())
    return x.cpu(), x.to("cpu"), x.tolist()


def test_host_reads(capsys):
    found = [f for f in torch_tpu.lint(reads, (torch.zeros(8, 128),)) if f.rule == "host_read"]
    lines = {f.line for f in found}
    words = ("if total", "total.item()", "x.cpu()")
    assert lines == {line_of(reads, w) for w in words}
    assert len(found) == 5
    assert all("on the device" in f.fix for f in found)


def data(x):
    picked = x[x > 0]
    return torch.nonzero(x), picked * 2


def test_shapes_that_depend_on_data():
    found = [f for f in torch_tpu.lint(data, (torch.zeros(8, 128),)) if f.rule == "shape"]
    assert {f.line for f in found} == {line_of(data, "x[x > 0]"), line_of(data, "nonzero")}


def uniques(x):
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    rows, places = torch.unique(x, dim=0, return_inverse=True)
    runs, lengths = torch.unique_consecutive(x, return_counts=True)
    assert values.shape == counts.shape == runs.shape == lengths.shape == (1024,)
    assert inverse.shape == rows.shape == x.shape
    assert places.shape == (8,)
    assert torch.unique_consecutive(x, dim=1).shape == x.shape
    return torch.linalg.eigvals(x[:, :8])


def test_the_run_goes_on_after_unique():
    found = torch_tpu.lint(uniques, (torch.zeros(8, 128),))
    assert not found.notes
    assert {f.line for f in found if f.rule == "shape"} == {
        line_of(uniques, f"{name} =") for name in ("values, inverse, counts", "rows, places")
    } | {line_of(uniques, "lengths ="), line_of(uniques, "consecutive(x, dim=1)")}
    assert only(found, "fallback").line == line_of(uniques, "eigvals")


def test_shapes_that_change():
    samples = [(torch.zeros(8, n, 128),) for n in (100, 101, 102)]
    hint = only(torch_tpu.lint(torch.relu, samples), "shape")
    assert "comes in 3 shapes" in hint.message
    assert "mark_dynamic(x, 1" in hint.fix
    hint = only(torch_tpu.lint(torch.mul, (torch.zeros(8, 128), 2.0)), "shape")
    assert "Python numbers" in hint.message


def test_which_size_changes_and_what_to_do():
    last = [(torch.zeros(n, 3, 128, 128), torch.zeros(n)) for n in (32, 32, 8)]
    hint = only(torch_tpu.lint(lambda x, y: x.relu() + y[:, None, None, None], last), "shape")
    assert "dim 0 changes: 32, 32, 8 (with it dim 0 of argument 1)" in hint.message
    assert hint.fix.startswith("drop_last=True in the DataLoader, or pad the last batch from 8 to")
    grows = [(torch.zeros(8, n, 128),) for n in (100, 101, 102)]
    assert "static cache" in only(torch_tpu.lint(torch.relu, grows), "shape").fix
    lengths = [(torch.zeros(8, n, 128),) for n in (100, 170, 120)]
    hint = only(torch_tpu.lint(torch.relu, lengths), "shape")
    assert hint.fix.startswith("torch_tpu.mark_dynamic(x, 1, max=170)")
    assert "multiples of 128" in hint.fix
    assert "3 shapes, or 2 where sizes are padded" in hint.cost
    both = [(torch.zeros(b, n),) for b, n in ((8, 128), (8, 256), (16, 128))]
    found = [f for f in torch_tpu.lint(torch.relu, both) if f.rule == "shape"]
    assert len(found) == 2
    assert all("2 sizes change on their own" in f.fix for f in found)
    ranks = [(torch.zeros(8, 128),), (torch.zeros(128),)]
    assert "number of dimensions" in only(torch_tpu.lint(torch.relu, ranks), "shape").fix


def test_fallbacks():
    hint = only(torch_tpu.lint(torch.linalg.eigvals, (torch.zeros(8, 8),)), "fallback")
    assert "linalg_eig" in hint.message
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten())
    assert "fallback" not in rules(torch_tpu.lint(model, (torch.zeros(2, 3, 8, 8),)))


def test_a_whole_step_and_the_model_stays_as_it_was():
    model = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512))
    opt = torch.optim.AdamW(model.parameters())
    step = aot.TrainStep(model, opt, lambda m, x: m(x).square().mean())
    before = {n: t.clone() for n, t in model.state_dict().items()}
    once = only(torch_tpu.lint(model, (torch.zeros(512, 512),)), "f32").cost_seconds
    found = torch_tpu.lint(step, (torch.zeros(512, 512),))
    assert only(found, "f32").cost_seconds == pytest.approx(3 * once)
    assert "fallback" not in rules(found)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not opt.state


def picks(x):
    place = x.argmax().item()
    return [x][place]  # 1, as far as the run knows


def mixes_devices(x):
    return x + torch.ones(128)


def test_what_cannot_go_on_is_noted():
    found = torch_tpu.lint(picks, (torch.zeros(8, 128),))
    assert f"ended at {__file__}:{line_of(picks, '[x][place]')}: IndexError" in found.notes[0]
    assert rules(found) == {"host_read"}
    found = torch_tpu.lint(mixes_devices, (torch.zeros(8, 128),))
    assert f"ended at {__file__}:{line_of(mixes_devices, 'ones')}" in found.notes[0]
    assert "device=x.device" in found.notes[0]


def broken(x):
    return x @ torch.zeros(3, 3, device=x.device)


def test_what_the_model_raises_is_raised():
    sample = (torch.zeros(8, 128),)
    with pytest.raises(RuntimeError, match=r"\[8, 128\] X \[3, 3\]") as raised:
        torch_tpu.lint(broken, sample)
    assert not isinstance(raised.value, aot.AotError)
    assert "broken" in [entry.name for entry in raised.traceback]
    assert "torch_tpu.lint" in raised.value.__notes__[0]
    with pytest.raises(TypeError, match="positional arguments"):
        torch_tpu.lint(nn.Linear(8, 8), (torch.zeros(8, 8), 1))
    with pytest.raises(NotImplementedError, match="forward"):
        torch_tpu.lint(nn.Module(), sample)


def test_bad_input():
    with pytest.raises(aot.AotError, match="tuple of arguments"):
        torch_tpu.lint(torch.relu, torch.zeros(3))
    with pytest.raises(aot.AotError, match="no generation 'v9'"):
        torch_tpu.lint(torch.relu, (torch.zeros(3),), generation="v9")
    with pytest.raises(aot.AotError, match="expected a module"):
        torch_tpu.lint("model", (torch.zeros(3),))


def test_the_command(tmp_path, capsys):
    script = tmp_path / "model.py"
    script.write_text(
        "import torch\n"
        "def build():\n"
        "    return torch.nn.Linear(512, 512), (torch.zeros(64, 512),)\n"
    )
    assert main(["lint", f"{script}:build"]) == 0
    assert "f32" in capsys.readouterr().out
    assert main(["lint", f"{script}:build", "--json", "--strict"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert found[0]["rule"] == "f32"
    script.write_text(
        "import torch\n"
        "def build():\n"
        "    return torch.relu, [(torch.zeros(n, 128),) for n in (32, 32, 8)]\n"
    )
    assert main(["lint", f"{script}:build"]) == 0
    assert "drop_last=True" in capsys.readouterr().out
    assert main(["lint", f"{script}:other"]) == 2
    assert "no function other" in capsys.readouterr().err
    assert main(["lint", f"{script}:build", "--generation", "v9"]) == 2


def test_the_command_with_a_model_that_fails(tmp_path, capsys):
    script = tmp_path / "model.py"
    script.write_text(
        "import sys, torch\n"
        "class Model(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x)\n"
        "def build():\n"
        "    return Model(8, 4), (torch.zeros(2, 9),)\n"
        "def raises():\n"
        "    return [][0]\n"
        "def ends():\n"
        "    sys.exit(0)\n"
    )
    for more in ([], ["--json"], ["--strict"]):
        assert main(["lint", f"{script}:build", *more]) == 2
        said = capsys.readouterr()
        assert not said.out
        assert said.err.startswith("torch-tpu: the model raised RuntimeError at ")
        assert f"{script}:4 in forward: return super().forward(x)" in said.err
        assert "on the CPU" in said.err
        assert "Traceback" not in said.err
    assert main(["lint", f"{script}:build", "--traceback"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["lint", f"{script}:raises"]) == 2
    assert f"IndexError: list index out of range (at {script}:8;" in capsys.readouterr().err
    assert main(["lint", f"{script}:ends"]) == 2
    assert "ended itself (sys.exit)" in capsys.readouterr().err
