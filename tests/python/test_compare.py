"""`torch-tpu compare`, and what else of the command line runs scripts or writes for shells."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import torch_tpu
from torch_tpu._compare import html, prices, report
from torch_tpu._compare.energy import Meter
from torch_tpu._compare.measure import Settings, figures, percentile
from torch_tpu.cli import main, parser

ROOT = Path(torch_tpu.__file__).parents[1]

TRAIN = """
    import torch
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        loss = model(torch.ones(2, 8)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("loss", loss.item())
"""
INFER = """
    import sys, torch
    from torch_tpu import compare
    device = sys.argv[sys.argv.index("--device") + 1]
    model = torch.nn.Linear(8, 4).to(device)
    order = torch.randperm(8, generator=torch.Generator())  # on the CPU: that is the default here
    with torch.no_grad():
        for _ in range(1000):
            model(torch.ones(2, 8, device=device))
            if "--marks" in sys.argv: compare.step(tokens=50)
"""


def command(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", "torch_tpu", *map(str, words)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    (tmp_path / "infer.py").write_text(textwrap.dedent(INFER))
    return tmp_path / "train.py"


def test_an_unchanged_script(script: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    table = tmp_path / "prices.toml"
    assert command("compare", "--write-prices", table).returncode == 0
    table.write_text(table.read_text() + "cpu = 3.6\ntpu = 7.2\n")
    done = command(
        *("compare", script, "--devices", "cpu,tpu", "--warmup", "3", "--json"),
        *("--tokens", "100", "--prices", table, "--html", page),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("loss ") == 2  # what the script prints
    answer = json.loads(done.stdout)
    for row, price in zip(answer["devices"], (3.6, 3.6), strict=True):  # XLA:CPU's name is cpu
        assert row["source"] == "optimizer"
        assert row["steps"] == len(row["latencies"]) == 9
        assert row["steps_per_second"] == pytest.approx(9 / sum(row["latencies"]))
        assert row["percentiles"]["p50"] <= row["percentiles"]["p99"]
        assert row["host_peak_bytes"] > 1 << 20
        per_token = price / 3600 / row["tokens_per_second"]
        assert row["cost_per_million_tokens"] == pytest.approx(per_token * 1e6)
    assert answer["devices"][0]["device_peak_bytes"] is None
    assert answer["devices"][1]["device_peak_bytes"] > 0
    assert answer["devices"][0]["ratio"] == 1
    text = page.read_text()
    assert "steps/s" in text
    assert "http" not in text.replace("http://www.w3.org", "")


def test_device_as_argument_marks_and_steps(script: Path) -> None:
    infer = script.with_name("infer.py")
    done = command(
        *("compare", "--devices", "cpu,tpu", "--steps", "4", "--warmup", "2", "--json"),
        *(infer, "--device", "{device}", "--marks"),
    )
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout)["devices"]:
        assert row["source"] == "marked"
        assert row["steps"] == 4
        assert row["tokens_per_second"] == pytest.approx(200 / sum(row["latencies"]))


def test_forwards_count_where_nothing_else_does(script: Path) -> None:
    infer = script.with_name("infer.py")
    words = ("--steps", "5", "--warmup", "0", "--", "--device", "cpu")
    done = command("compare", infer, "--devices", "cpu", *words)
    assert done.returncode == 0, done.stderr
    assert "5 steps (forwards)" in done.stdout


def test_a_script_that_stays_on_another_device(script: Path) -> None:
    infer = script.with_name("infer.py")
    infer.write_text(infer.read_text().replace("torch.Generator()", "torch.Generator('tpu')"))
    words = ("--devices", "tpu", "--steps", "3", "--", "--device", "cpu")
    done = command("compare", infer, *words)
    assert done.returncode == 1
    assert "the script ran on cpu, not on tpu" in done.stdout
    assert "{device}" in done.stdout


def test_failures_are_rows(script: Path, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise ValueError('planted')\n")
    done = command("compare", tmp_path / "fails.py", "--devices", "cpu", "--json")
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)["devices"]
    assert row["failure"] == "ValueError: planted"
    (tmp_path / "elsewhere.py").write_text("import torch; torch.ones(1, device='no')\n")
    done = command("compare", tmp_path / "elsewhere.py", "--devices", "cpu")
    assert "device string: no. Where the script takes its device as an argument" in done.stdout
    (tmp_path / "hangs.py").write_text("import time; time.sleep(600)\n")
    done = command("compare", tmp_path / "hangs.py", "--devices", "cpu", "--timeout", "4")
    assert "not done within 4 s" in done.stdout
    (tmp_path / "crashes.py").write_text("import os; os.kill(os.getpid(), 6)\n")
    done = command("compare", tmp_path / "crashes.py", "--devices", "cpu")
    assert "ended by SIGABRT" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare"], "say which script"),
        (["compare", "none.py"], "there is no script none.py"),
        (["compare", "SCRIPT", "--devices", "gpu"], "no device 'gpu'"),
        (["compare", "SCRIPT", "--steps", "0"], "expected a number from 1"),
        (["compare", "SCRIPT", "--warmup", "-1"], "expected a number from 0"),
        (["compare", "SCRIPT", "--html", "/no/such/page.html"], "is no folder"),
        (["compare", "SCRIPT", "--prices", "none.toml"], "No such file"),
        (["compare", "--write-prices", "SCRIPT"], "is there already"),
        (["coverage", "none.py"], "there is no script none.py"),
        (["explain", "none.py"], "there is no script none.py"),
        (["explain", "--html", "/no/such/page.html", "SCRIPT"], "is no folder"),
        (["explain", "--output", "/", "SCRIPT"], "is a folder: say which file"),
        (["explain", "--programs", "0", "SCRIPT"], "expected a number from 1"),
        (["coverage", "--output", "/no/such/list", "SCRIPT"], "is no folder"),
        (["precompile", "SCRIPT", "-o", "/"], "is a folder: say which file"),
        (["bench", "--source", "/no/such"], "come with the source tree"),
        (["bench", "--reference", "x"], "invalid choice"),
        (["completion", "csh"], "invalid choice"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input(
    words: list[str], message: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([str(script) if word == "SCRIPT" else word for word in words])
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


# Parts


def test_prices(tmp_path: Path) -> None:
    table = prices.Prices("EUR", {"cuda": 1.0, "H200": 3.0, "NVIDIA H200": 4.0})
    assert table.of("cuda", "NVIDIA A100") == 1.0
    assert table.of("cuda", "NVIDIA H200") == 4.0
    assert table.of("tpu", "v5e") is None
    for text, message in [
        ("per_hour = 3", "expected currency"),
        ('[per_hour]\ncpu = "x"', "per_hour.cpu: expected a price, got 'x'"),
        ("[per_hour]\ncpu = -1", "expected a price"),
        ("[", "prices.toml"),
    ]:
        (tmp_path / "prices.toml").write_text(text)
        with pytest.raises(prices.PriceError, match=r"prices\.toml") as error:
            prices.read(tmp_path / "prices.toml")
        assert message in str(error.value)
    (tmp_path / "prices.toml").write_text(prices.TEMPLATE)
    assert prices.read(tmp_path / "prices.toml") == prices.Prices("USD", {})


def test_energy_counters(tmp_path: Path) -> None:
    for name, value in (("intel-rapl:0", 10_000_000), ("intel-rapl:1", 900), ("intel-rapl:0:0", 7)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{value}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("1000\n")
    meter = Meter(rapl=tmp_path, nvml=False)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("12000000\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("100\n")  # wrapped: 900 .. 1000, 0 .. 100
    (tmp_path / "intel-rapl:0:0" / "energy_uj").write_text("999\n")
    assert meter.joules() == pytest.approx({"cpu": 2.0 + 200e-6})
    meter.start()
    assert meter.joules() == {"cpu": 0.0}
    assert Meter(rapl=tmp_path / "none", nvml=False).joules() == {}


def test_figures_energy_and_percentiles(tmp_path: Path) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 90) == pytest.approx(3.7)
    answer = {
        **{"source": "optimizer", "times": [1.0, 2.0, 2.1, 2.3, 2.6], "tokens": []},
        **{"devices": ["cpu"], "joules": {"cpu": 6.0}, "host_peak_bytes": 1, "torch": "2"},
        **{"device_peak_bytes": None, "device_name": "x"},
    }
    settings = Settings(tmp_path / "a<b>.py", [], warmup=2)
    row = figures("cpu", answer, settings)
    assert row.latencies == pytest.approx([0.1, 0.2, 0.3])
    assert row.steps_per_second == pytest.approx(5)
    assert row.joules_per_step == {"cpu": 2.0}
    assert row.first_step == 1.0
    assert "2 J cpu" in report.text([row], settings)
    assert "a&lt;b&gt;.py" in html.page([row], settings)


def test_step_does_nothing_elsewhere() -> None:
    torch_tpu.compare.step(tokens=3)


def test_coverage(script: Path) -> None:
    moved = script.with_name("tpu.py")
    moved.write_text(
        "import sys, torch\n"
        "x = torch.rand(8, 8, device='tpu')\n"
        "(x @ x).sum().item()\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    done = command("coverage", "--json", moved, "0")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["launches"] > 0
    assert answer["fallbacks"] == {}
    assert command("coverage", "--strict", moved, "3").returncode == 3


# Shells


def test_completion_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        text = capsys.readouterr().out
        for name in ("doctor", "compare", "cache", "clear", "older-than", "devices", "json"):
            assert name in text, (shell, name)
        if shutil.which(shell):
            done = subprocess.run([shell, "-n"], input=text, text=True, check=False)
            assert done.returncode == 0, shell


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["co"], {"compare", "completion", "coverage"}),
        (["cache", "i"], {"info", "import"}),
        (["cache", "clear", "--o"], {"--older-than"}),
        (["export", "--target", "c"], {"cpu", "cuda"}),
        (["completion", "z"], {"zsh"}),
    ],
)
def test_bash_completes(
    words: list[str], wanted: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["completion", "bash"])
    (tmp_path / "c.bash").write_text(capsys.readouterr().out)
    quoted = " ".join(f"'{word}'" for word in words)
    program = (
        f"cd {tmp_path}; source ./c.bash; COMP_WORDS=(torch-tpu {quoted}); "
        f"COMP_CWORD={len(words)}; "
        '_torch_tpu; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - {"c.bash"} == wanted


def test_help_and_json_everywhere() -> None:
    from torch_tpu.cli.completion import _all, tree

    leaves = [node for node in _all(tree(parser())) if not node.children]
    assert len(leaves) >= 11
    for node in leaves:
        names = {name for names, _, _ in node.options for name in names}
        assert "--help" in names
        assert "--json" in names or node.path == ("completion",), node.path
        assert all(text for _, text, _ in node.options), node.path


def test_bench_lists_what_there_is() -> None:
    done = command("bench", "--list", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "tiny300" in answer["workloads"]
    by_name = {c["name"]: c["optional"] for c in answer["contestants"]}
    assert by_name["ours-fused"] is False
    assert by_name["ours-debug"] is True
    assert "usage" not in command("bench", "--list").stdout


def test_the_command_line_starts_without_torch() -> None:
    code = "import sys; sys.argv[0] = 'torch-tpu'\nfrom torch_tpu.cli import main\n"
    code += "main(['completion', 'bash'])\nassert 'torch' not in sys.modules"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
