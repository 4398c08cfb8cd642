"""Ahead of time with the real compiler: skipped without libtpu."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_tpu
from torch_tpu import aot
from torch_tpu.aot.compiler import compile_text
from torch_tpu.aot.hlo import parse_module
from torch_tpu.aot.padding import find_waste
from torch_tpu.cli import main

ROOT = Path(__file__).resolve().parents[2]
SITES = [s for s in os.environ.get("TORCH_TPU_TEST_SITE_PACKAGES", "").split(":") if s]
HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None or any(
    (Path(site) / "libtpu").is_dir() for site in SITES
)
pytestmark = [
    pytest.mark.libtpu,
    pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not installed"),
]


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, device="meta", dtype=dtype)


@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2", "tpu7x:2x2x1"])
def test_a_product_uses_the_matrix_units_as_the_dump_says(topology):
    model = nn.Linear(1024, 1024, bias=False, device="meta", dtype=torch.bfloat16)
    traced = aot.trace(model, (meta(1024, 1024),))
    compiled = compile_text(traced.text, aot.parse_topology(topology))
    report = aot.make_report(traced, aot.parse_topology(topology), compiled, 0.0)
    part = next(p for p in report.parts if p.flops)
    lines = compiled.profile.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"HLO: %{part.name} "))
    block = lines[at + 1 : lines.index("", at)]
    packed = max(float(x.rsplit(" ", 1)[1]) for x in block if x.startswith(" - MXU_0 matmul"))
    assert abs(part.mxu - packed) < 0.05
    assert part.mxu > 0.85
    assert report.flops == 2 * 1024**3


def test_hbm_figures_are_those_of_the_memory_analysis():
    """As another process asks the compiler for them."""
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
    model.to("meta", torch.bfloat16)
    opt = torch.optim.SGD(model.parameters(), momentum=0.9)
    step = aot.TrainStep(model, opt, lambda m, x: m(x).square().mean())
    traced = aot.trace(step, (meta(256, 512),))
    report = aot.compile_traced(traced, "v5e:2x2")
    code = (
        "import json, sys, torch_tpu\n"
        "dirs = sys.argv[1:] + torch_tpu._C._search_dirs()\n"
        "torch_tpu._C._set_search_dirs(dirs)\n"
        "out = torch_tpu._C._Topology('v5e:2x2').compile(sys.stdin.read())\n"
        "print(json.dumps({k: v for k, v in out.items() if k.endswith('_bytes')}))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code, *SITES],
        input=traced.text,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    expected = json.loads(asked.stdout.splitlines()[-1])
    assert {k: v for k, v in report.hbm.items() if k != "limit"} == expected
    donated = sum(a.bytes for a in traced.arguments if a.donated)
    assert donated <= report.hbm["alias_bytes"] <= report.hbm["argument_bytes"]
    assert report.fits
    # What is listed is in HBM, and what lies in an argument's place is not listed again.
    assert 0.9 * report.needed < sum(b.bytes for b in report.largest) + report.hbm["code_bytes"]
    assert sum(b.bytes for b in report.largest) <= report.needed
    assert {b.name for b in report.largest if b.kind == "parameter"} >= {"0.weight", "2.weight"}


def test_heads_of_64_cost_more_than_of_128():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    reports = [
        aot.compile(attend, (meta(8, heads, 1024, width),) * 3, topology="v5e:2x2")
        for heads, width in ((12, 64), (6, 128))
    ]
    assert reports[0].bytes > 1.5 * reports[1].bytes
    assert reports[0].seconds > reports[1].seconds


def test_kernels_of_pallas_count():
    jax = pytest.importorskip("jax")
    from jax.experimental import pallas as pl

    from torch_tpu import kernels

    def attend(q, k, v):
        return kernels.flash_attention(q, k, v, is_causal=True, block_q=256, block_k=256)

    report = aot.compile(attend, (meta(2, 4, 1024, 128),) * 3)
    # Of 4 x 4 blocks of scores 10 count; two products each.
    assert report.flops == 2 * 2 * (2 * 4) * 10 * 256 * 256 * 128
    (kernel,) = [p for p in report.parts if p.flops]
    assert kernel.op_name.startswith("torch_tpu::flash_attention at test_aot.py:")
    assert 0 < kernel.mxu < 1
    assert not report.notes
    assert not report.padding  # the denominators lie along the lanes
    g = aot.parse_topology("v5e:2x2").generation
    assert kernel.time(g) == pytest.approx(kernel.flops / g.flops / kernel.mxu)
    assert report.seconds >= kernel.time(g)

    def double(x):
        def body(x_ref, out_ref):
            out_ref[...] = x_ref[...] * 2

        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    op = torch_tpu.jax_op("test_aot::double", double)
    report = aot.compile(lambda x: op(x), (meta(256, 256, dtype=torch.float32),))
    assert any("1 Pallas kernel" in n and "cost_estimate" in n for n in report.notes)


ROW_MAJOR = """module @copy {{
  func.func public @main(%arg0: tensor<8x12x1024x{d}xbf16> {{mhlo.layout_mode = "{{3,2,1,0}}"}}) -> (tensor<8x12x1024x{d}xbf16> {{mhlo.layout_mode = "{{3,2,1,0}}"}}) {{
    %0 = stablehlo.add %arg0, %arg0 : tensor<8x12x1024x{d}xbf16>
    return %0 : tensor<8x12x1024x{d}xbf16>
  }}
}}
"""  # noqa: E501


@pytest.mark.parametrize(("width", "factor"), [(64, 2), (128, 1)])
def test_padding_is_what_the_compiler_takes(width, factor):
    compiled = compile_text(ROW_MAJOR.format(d=width), aot.parse_topology("v5e:2x2"))
    elements = 8 * 12 * 1024 * width * 2
    assert compiled.figures["argument_bytes"] == factor * elements
    argument = aot.Argument("input", "x", torch.bfloat16, [8, 12, 1024, width])
    waste = [w for w in find_waste(parse_module(compiled.optimized), [argument]) if w.name == "x"]
    assert sum(w.waste for w in waste) == (factor - 1) * elements
    assert all("head dim" in w.fix for w in waste)


BUILD = """
import torch
def build():
    with torch.device("meta"):
        model = torch.nn.Linear(65536, 65536)
    return model, (torch.empty(8, 65536, device="meta"),)
def small():
    return torch.nn.Linear(256, 256), (torch.zeros(8, 256),)
"""


def test_a_model_that_does_not_fit(tmp_path, capsys):
    script = tmp_path / "model.py"
    script.write_text(BUILD)
    assert main(["aot", f"{script}:build", "--topology", "v5e:2x2"]) == 2
    out = capsys.readouterr().out
    assert "DOES NOT FIT" in out
    assert "of 15.8 GiB" in out
    assert "parameter  weight" in out


def test_activations_that_do_not_fit():
    model = nn.Sequential(nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096)).to("meta")
    opt = torch.optim.SGD(model.parameters())
    step = aot.TrainStep(model, opt, lambda m, x: m(x).square().mean())
    report = aot.compile(step, (meta(131072, 4096, dtype=torch.float32),))
    assert not report.fits
    first = report.largest[0]
    assert first.kind == "temporary"
    assert first.shape == "f32[131072,16384]"
    assert "aten::linear" in first.name
    assert first.bytes == 8 << 30
    assert {b.name for b in report.largest if b.kind == "parameter"} >= {"0.weight", "2.weight"}


def test_side_by_side(tmp_path, capsys):
    script = tmp_path / "model.py"
    script.write_text(BUILD)
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    command = ["aot", f"{script}:small", "--compare", "v5e:2x2", "v6e:2x2"]
    assert main([*command, "--html", str(page), "--json", str(data)]) == 0
    reports = json.loads(data.read_text())["reports"]
    assert [r["topology"] for r in reports] == ["v5e:2x2", "v6e:2x2"]
    assert "Side by side" in page.read_text()
    assert "time a step" in capsys.readouterr().out


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(256) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_step_over_several_devices():
    with torch.device("meta"):
        model = Layers().to(torch.bfloat16)
    opt = torch.optim.SGD(model.parameters())
    step = aot.TrainStep(model, opt, lambda m, x: m(x).square().mean())
    report = aot.compile(step, (meta(512, 256),), topology="v5e:2x2", shard="fsdp", scan="layers")
    assert report.devices == 4
    assert report.flops == 7 * 6 * 2 * 128 * 256 * 512
    gathers = [c for c in report.collectives if c.kind == "all-gather"]
    assert sum(c.times for c in gathers) == 24
    # A quarter of the weights and of the batch.
    assert report.hbm["argument_bytes"] == (6 * 2 * 256 * 512 + 512 * 256) * 2 // 4


def test_a_refused_program_is_an_error():
    with pytest.raises(aot.AotError, match="refuses the program for v5e:2x2"):
        compile_text("module @x { broken", aot.parse_topology("v5e:2x2"))


def test_a_crash_of_the_compiler_is_an_error(tmp_path, capsys):
    """It ends its own process where a program names a device that the topology does not have."""
    folder = tmp_path / "linear"
    torch_tpu.export(nn.Linear(8, 8).eval(), (torch.zeros(8, 8),), path=folder, target="tpu")
    (module,) = folder.glob("*.mlir")
    text, at = module.read_text(), "    return %"
    result = text[text.index(at) + len(at) - 1 :].split()[0]
    sent = (
        f'    %sent = "stablehlo.collective_permute"({result}) {{source_target_pairs = '
        "dense<[[0, 99]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1,"
        " type = 1>} : (tensor<8x8xf32>) -> tensor<8x8xf32>\n"
    )
    module.write_text(text.replace(f"{at}{result[1:]}", f"{sent}    return %sent"))
    manifest = folder / "manifest.json"
    before, after = (hashlib.sha256(t.encode()).hexdigest() for t in (text, module.read_text()))
    manifest.write_text(manifest.read_text().replace(before, after))
    assert main(["aot", str(folder), "--topology", "v5e:2x2"]) == 2
    said = capsys.readouterr().err
    assert "the TPU compiler died (SIGABRT) while it compiled for v5e:2x2" in said
    assert "Traceback" not in said
    with pytest.raises(ChildProcessError):  # none is left
        os.waitpid(-1, os.WNOHANG)


def test_a_pack_of_what_was_exported(tmp_path, capsys):
    model = nn.Linear(64, 32).eval()
    folder, pack = tmp_path / "linear", tmp_path / "linear.pack"
    torch_tpu.export(model, (torch.zeros(8, 64),), path=folder, target="tpu")
    command = ["aot", str(folder), "--topology", "v5e:1x1"]
    assert main([*command, "--pack", str(pack)]) == 0
    info = torch_tpu._C._pack_info(str(pack))
    assert info["programs"] == 1
    fields = info["fingerprint"]
    assert fields["platform"] == "tpu"
    assert fields["device"] == "TPU v5 lite"
    assert set(fields) == set(torch_tpu._C._fingerprint()) - {"host_cpu", "host_threads"}
    for name in ("torch", "torch_tpu", "torch_library", "format"):
        assert fields[name] == torch_tpu._C._fingerprint()[name]
    # A process with the device has none of the flags that the report's dumps take.
    assert fields["compiler_flags"] == torch_tpu._C._fingerprint()["compiler_flags"]
    assert b"torch-tpu-aot" not in pack.read_bytes()
    with pytest.raises(RuntimeError, match="platform: tpu there, cpu here"):
        torch_tpu.load_pack(pack)
    assert main([*command, "--shard", "fsdp"]) == 2
    assert "leave out --shard" in capsys.readouterr().err
    with pytest.raises(aot.AotError, match="serialize=True"):
        aot.write_pack(aot.compile_traced(aot.from_export(folder)[0], "v5e:1x1"), pack)
