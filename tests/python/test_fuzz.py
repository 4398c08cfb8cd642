"""Random programs give the same on the device as on the CPU, in every mode.

`python -m fuzz --help` (in tests/python) runs more of them."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace

import pytest
from fuzz import Line, Loop, Node, Setting, check, listing, reduced, report, stable_program

import torch_tpu

SETTINGS = (
    *(Setting("debug"), Setting("strict")),
    *(Setting("fused", when) for when in ("first", "second", "never")),
)
SEEDS = range(25)


@functools.cache
def program_of(seed: int) -> list[Node]:
    return stable_program(seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_program(setting: Setting, seed: int) -> None:
    if reason := setting.missing():
        pytest.skip(reason)
    problem = report(seed, program_of(seed), setting, seconds=30.0)
    assert problem is None, problem


def test_a_setting_is_set_back(monkeypatch) -> None:
    said: list[str] = []
    fused = SimpleNamespace(compile_when=said.append)
    monkeypatch.setattr(torch_tpu, "fused", fused, raising=False)
    before = torch_tpu.get_mode()
    setting = Setting("fused", "never")
    assert setting.missing() is None
    with setting.applied():
        assert (torch_tpu.get_mode(), said) == ("fused", ["never"])
    assert (torch_tpu.get_mode(), said) == (before, ["never", "second"])


def test_a_seed_is_a_program(run_python) -> None:
    code = f"""
        import sys
        sys.path[:] = {sys.path!r}
        from fuzz import listing, stable_program
        print(listing(stable_program(3)))
    """
    assert run_python(code).strip() == listing(stable_program(3)).strip()
    assert listing(stable_program(3)) != listing(stable_program(4))


# Differs in its third pass, and nowhere else.
WRONG = 'u1.add_(1 if device == "tpu" and i == 2 else 0)'


def test_a_wrong_program_is_noticed_and_made_small() -> None:
    right = stable_program(5)
    data = Line("u1 = draw(1, (4,)).to(device)")
    other = Line("u2 = draw(2, (4,)).to(device)")
    body = [Line("u2 = u2 * 0.5"), Line(WRONG), Line("u2 = u2 + u1")]
    wrong = [*right, data, other, Loop(body, trips=5)]
    failure = check(wrong, Setting("strict"))
    assert failure is not None
    assert failure.kind == "differs"
    small = reduced(wrong, Setting("strict"), failure.kind, seconds=60.0)
    assert listing(small) == listing([data, Loop([Line(WRONG)], trips=3)])


def test_what_a_report_says() -> None:
    nodes = [Line("t1 = draw(1, (4,)).to(device)"), Line('{"cpu": 1}[device]')]
    text = report(7, nodes, Setting("strict"), seconds=10.0)
    assert text is not None
    assert "seed 7, strict: raises: {" in text
    assert "KeyError: 'tpu'" in text
    listed = text.split("\n\n", 1)[1]
    with pytest.raises(KeyError):
        exec(compile(listed, "<listing>", "exec"), {})


@pytest.mark.parametrize(
    "line",
    [
        "seen.append(t1.sum().item() + (device == 'tpu'))",
        "seen.append([1, 2, 3 if device == 'tpu' else 4])",
        "t2 = t1.double() if device == 'tpu' else t1 * 1",
        "t2 = t1 > (2 if device == 'tpu' else -2)",
        "t2 = t1[:, None] if device == 'tpu' else t1[None]",
        "if device == 'tpu': t2 = t1 * 1",
    ],
)
def test_every_kind_of_difference_is_noticed(line: str) -> None:
    failure = check([Line("t1 = draw(1, (4,)).to(device)"), Line(line)], Setting("strict"))
    assert failure is not None
    assert failure.kind == "differs"
