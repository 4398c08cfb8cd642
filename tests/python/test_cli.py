"""The command line, as a user calls it: what it prints, exit codes, JSON, packs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import torch_tpu
from torch_tpu import _common_ops
from torch_tpu.cli import main
from torch_tpu.cli._common import size_text

Command = Callable[..., "Done"]
Python = Callable[..., str]

SCRIPT = """
    import sys, torch, torch_tpu
    import beside  # a module next to the script
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.Linear(5, 1))
    model.to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(int(sys.argv[1])):
        loss = model(torch.ones(3, 6, device="tpu")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    stats = torch_tpu.stats()
    print("compiled", stats["compiles"], "packed", stats["disk"]["pack_loads"], beside.NAME)
"""


# Importing torch takes longer than most commands. This process has done it, and forks for each.
FORKS = """
    import json, os, runpy, sys
    import torch_tpu.cli
    for line in sys.stdin:
        task = json.loads(line)
        child = os.fork()
        if child == 0:
            break
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    else:
        sys.exit()
    for number, name in ((1, task["out"]), (2, task["err"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(task["env"])
    sys.argv = task["words"]
    if task["script"]:
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        sys.exit(torch_tpu.cli.main(sys.argv))
"""
Done = subprocess.CompletedProcess[str]


class Forks:
    """Runs commands and scripts as processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # What is read at import must be as a command would find it.
        plain = {k: v for k, v in os.environ.items() if not k.startswith("TORCH_TPU_PACK")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(FORKS)],
            env=plain,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, words: list[str], cache: Path, env: dict[str, str], *, script: bool) -> Done:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        out, err = self.folder / "out", self.folder / "err"
        task = {
            "words": words,
            "script": script,
            "env": {**os.environ, "TORCH_TPU_CACHE_DIR": str(cache), **env},
            "out": str(out),
            "err": str(err),
        }
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        return Done(words, code, out.read_text(), err.read_text())


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def command(forks: Forks) -> Command:
    def run(*arguments: str | Path, cache: Path, **env: str) -> Done:
        return forks([str(a) for a in arguments], cache, env, script=False)

    return run


@pytest.fixture(scope="module")
def python(forks: Forks) -> Python:
    def run(script: Path, *arguments: str, cache: Path, **env: str) -> str:
        done = forks([str(script), *arguments], cache, env, script=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "beside.py").write_text("NAME = 'neighbour'\n")
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    (folder / "fails.py").write_text("raise SystemExit(3)\n")
    return folder / "train.py"


@pytest.fixture(scope="module")
def pack(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs")
    done = subprocess.run(  # as a user calls it
        [sys.executable, "-m", "torch_tpu", "precompile", script, "2", "-o", folder / "a.pack"],
        env={**os.environ, "TORCH_TPU_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "compiled" in done.stdout  # what the script itself prints
    assert f"to {folder / 'a.pack'}" in done.stdout
    return folder / "a.pack"


# Packs


def test_with_a_pack_the_first_step_compiles_nothing(
    python: Python, script: Path, pack: Path, tmp_path: Path
) -> None:
    out = python(script, "3", cache=tmp_path / "empty", TORCH_TPU_PACK=str(pack))
    assert "compiled 0 packed " in out
    assert "packed 0" not in out
    assert not list(tmp_path.glob("empty/*/*.program"))
    out = python(script, "3", cache=tmp_path / "empty2", TORCH_TPU_PACK=f"/no/such.pack:{pack}")
    assert "compiled 0 packed " in out
    assert "the pack /no/such.pack cannot be read" in out


def test_load_pack(python: Python, script: Path, pack: Path, tmp_path: Path) -> None:
    loading = tmp_path / "train.py"
    first = f"import torch_tpu; assert torch_tpu.load_pack({str(pack)!r}) > 10\n"
    loading.write_text(first + script.read_text())
    (tmp_path / "beside.py").write_text("NAME = ''\n")
    assert "compiled 0 " in python(loading, "2", cache=tmp_path / "off", TORCH_TPU_MODE="strict")


def test_a_pack_of_another_compiler_says_what_differs(
    python: Python, script: Path, pack: Path, tmp_path: Path
) -> None:
    flags = "--xla_cpu_enable_fast_math=false"
    env = {"TORCH_TPU_PACK": str(pack), "XLA_FLAGS": flags}
    out = python(script, "1", cache=tmp_path / "c", **env)
    assert "was made for another compiler, device or build" in out
    assert f"compiler_flags: none there, XLA_FLAGS={flags}" in out
    assert "compiled 0" not in out


def test_a_damaged_pack_stops_nothing(
    python: Python, script: Path, pack: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.pack"
    bad.write_bytes(pack.read_bytes()[:-1000])
    out = python(script, "1", cache=tmp_path / "c", TORCH_TPU_PACK=str(bad))
    assert "is damaged" in out
    assert "compiled" in out


def test_any_damage_of_a_pack_is_found_when_it_is_loaded(pack: Path, tmp_path: Path) -> None:
    """In the index, in a program, at the end."""
    bad = tmp_path / "bad.pack"
    good = pack.read_bytes()
    assert torch_tpu._C._pack_info(str(pack))["programs"] > 10
    rng = random.Random(0)
    for place in [0, 9, 30, len(good) - 1, *(rng.randrange(len(good)) for _ in range(20))]:
        data = bytearray(good)
        data[place] ^= 1 << rng.randrange(8)
        bad.write_bytes(data)
        with pytest.raises(RuntimeError, match=r"bad\.pack (is damaged|is not a pack|has format)"):
            torch_tpu.load_pack(bad)
        bad.write_bytes(good[:place])
        with pytest.raises(RuntimeError, match=r"bad\.pack (is damaged|is not a pack)"):
            torch_tpu.load_pack(bad)
    bad.write_bytes(good + b"\0")
    with pytest.raises(RuntimeError, match=r"is damaged \(it is too long\)\. Copy it again"):
        torch_tpu.load_pack(bad)


def test_a_pack_that_others_may_write(
    python: Python, script: Path, pack: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.pack"
    mine.write_bytes(pack.read_bytes())
    mine.chmod(0o666)
    with pytest.raises(RuntimeError, match=r"others may write .*mine\.pack.*chmod go-w"):
        torch_tpu.load_pack(mine)
    out = python(script, "1", cache=tmp_path / "c", TORCH_TPU_PACK=str(mine))
    assert out.count("others may write") == 1
    assert "packed 0" in out
    mine.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(mine, 4242, 4242)
        with pytest.raises(RuntimeError, match=r"belongs to user 4242.*a copy of your own"):
            torch_tpu.load_pack(mine)
    mine.unlink()
    os.mkfifo(mine)
    with pytest.raises(RuntimeError, match="is a pipe"):
        torch_tpu.load_pack(mine)


def test_a_failing_script_leaves_no_pack(command: Command, script: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.pack"
    done = command("precompile", "-o", target, script.parent / "fails.py", cache=tmp_path / "c")
    assert done.returncode == 1
    assert "ended with 3; no pack is written" in done.stderr
    assert not target.exists()
    raises = tmp_path / "raises.py"
    raises.write_text("def work():\n    return [][0]\nwork()\n")
    done = command("precompile", "-o", target, raises, cache=tmp_path / "c")
    assert done.returncode == 1
    assert "IndexError; no pack is written" in done.stderr
    assert "in work" in done.stderr
    assert "runpy" not in done.stderr  # as python itself would show it
    assert not target.exists()


def test_a_pack_without_what_cannot_be_compiled(command: Command, tmp_path: Path) -> None:
    script = tmp_path / "tries.py"
    script.write_text(
        "import torch, torch_tpu\n"
        "q = torch.ones(1, 2, 64, 8, dtype=torch.bfloat16, device='tpu')\n"
        "torch_tpu._C._set_attention_form('cudnn')  # which is not there\n"
        "try:\n"
        "    torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().item()\n"
        "except RuntimeError:\n"
        "    print('without', (q + 1).sum().item())\n"
    )
    target = tmp_path / "rest.pack"
    done = command("precompile", "-o", target, script, cache=tmp_path / "c")
    assert done.returncode == 0, done.stderr
    assert "without 2048" in done.stdout
    assert f"UserWarning: the pack {target} is without what cannot be compiled: " in done.stderr
    assert "scaled_dot_product" in done.stderr
    assert "__cudnn$fmhaSoftmax" in done.stderr
    assert target.stat().st_size > 0


def test_a_pack_that_ends_in_an_error(python: Python, tmp_path: Path) -> None:
    script, target = tmp_path / "fails.py", tmp_path / "x.pack"
    script.write_text(
        "import os, torch, torch_tpu\n"
        "q = torch.ones(1, 2, 64, 8, dtype=torch.bfloat16, device='tpu')\n"
        "torch_tpu._C._set_attention_form('cudnn')  # which is not there\n"
        "try:\n"
        f"    with torch_tpu.record_pack({str(target)!r}):\n"
        "        (q + 1).sum().item()\n"
        "        y = torch.nn.functional.scaled_dot_product_attention(q, q, q)\n"
        "except RuntimeError as error:\n"
        f"    print('raised', '__cudnn' in str(error), os.path.exists({str(target)!r}))\n"
        "(q + 2).sum().item()\n"
        f"print('recorded', torch_tpu._C._write_record({str(target)!r}))\n"
    )
    out = python(script, cache=tmp_path / "c")
    assert "raised True False" in out
    assert "recorded 0" in out  # the recording has ended


def test_options_of_ours_after_the_script(command: Command, script: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.pack"
    done = command("precompile", script, "2", "-o", target, "--json", cache=tmp_path / "c")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout[done.stdout.index("{") :])
    assert answer["file"] == str(target)
    assert answer["programs"] > 10
    assert answer["bytes"] == target.stat().st_size


def test_precompile_common(command: Command, python: Python, tmp_path: Path) -> None:
    target = tmp_path / "ops.pack"
    options = ("--only", "add", "--dtypes", "float32", "--json")
    done = command("precompile", "--common", *options, "-o", target, cache=tmp_path / "c")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["programs"] >= len(_common_ops.SHAPES)
    assert answer["bytes"] == target.stat().st_size
    user = tmp_path / "use.py"
    user.write_text(
        "import torch, torch_tpu\n"
        "x = torch.ones(64, 64, device='tpu'); x + x.clone()\n"
        "print('compiled', torch_tpu.stats()['compiles'])\n"
    )
    assert "compiled 0" in python(user, cache=tmp_path / "e", TORCH_TPU_PACK=str(target))


def test_common_cases_run() -> None:
    """One shape of each: the list must not name what cannot run."""
    seen = set()
    for case in _common_ops.cases():
        if case.shape in ((16,), (8, 64, 64), (64, 64)) and case.name not in seen:
            seen.add(case.name)
            case.run()
    assert seen == {case.name for case in _common_ops.cases()}


# The folder


def test_cache_commands(
    command: Command, python: Python, script: Path, pack: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    assert "does not exist yet" in command("cache", "info", cache=cache).stdout
    done = command("cache", "import", pack, "--json", cache=cache)
    assert done.returncode == 0, done.stderr
    count = json.loads(done.stdout)["programs"]
    assert count > 10
    assert "compiled 0 packed 0" in python(script, "2", cache=cache)

    info = json.loads(command("cache", "info", "--json", cache=cache).stdout)
    assert info["folder"] == str(cache)
    assert info["programs"] == count
    assert info["bytes"] == sum(p.stat().st_size for p in cache.glob("*/*.program"))
    (space,) = info["namespaces"]
    assert space["description"]["platform"] == "cpu"
    assert "torch" in command("cache", "info", cache=cache).stdout

    again = tmp_path / "again.pack"
    done = command("cache", "export", again, cache=cache)
    assert f"wrote {count} programs" in done.stdout
    assert again.stat().st_size == pack.stat().st_size

    assert (
        "removed 0 programs" in command("cache", "clear", "--older-than", "1", cache=cache).stdout
    )
    assert f"removed {count} programs" in command("cache", "clear", cache=cache).stdout
    assert list(cache.iterdir()) == []


def test_errors_have_no_traceback(command: Command, tmp_path: Path) -> None:
    (tmp_path / "no.pack").write_text("something else")
    cases = [
        (2, ("cache", "import", tmp_path / "no.pack"), tmp_path / "c", "is not a pack"),
        (2, ("cache", "import", tmp_path / "none"), tmp_path / "c", "No such file"),
        (1, ("cache", "info"), Path("off"), "the disk cache is off"),
        (2, ("precompile", "none.py", "-o", tmp_path / "x"), tmp_path / "c", "no script none.py"),
        (2, ("export", "none.py:build", "-o", tmp_path / "x"), tmp_path / "c", "no script none.py"),
        (2, ("cache", "export", tmp_path / "no/x"), tmp_path / "c", "cannot be written"),
    ]
    bad = command("cache", "info", cache=tmp_path, TORCH_TPU_CACHE_BYTES="2T")
    assert bad.returncode == 1
    assert "torch-tpu: [TORCH_TPU_CACHE_BYTES] expected" in bad.stderr
    for code, arguments, cache, message in cases:
        done = command(*arguments, cache=cache)
        assert done.returncode == code, arguments
        assert message in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [[], ["cache"], ["nonsense"], ["precompile", "x.py"], ["precompile", "-o", "x"]],
    ids=" ".join,
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: torch-tpu" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["cache"], ["cache", "clear"], ["precompile"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--help"])
    assert stop.value.code == 0
    assert len(capsys.readouterr().out) > 200


def test_sizes() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        *("0 B", "1023 B", "1.0 KiB"),
        *("5.0 MiB", "3072.0 GiB"),
    ]
