"""Runs a program on the CPU and on the device, compares, and makes a failing one small."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import torch_tpu

from .maker import make
from .program import HEADER, Line, Loop, Names, Node, Thread, draw, listing, run, tensors_in

MODES = ("debug", "strict", "fused")
COMPILE_WHEN = ("first", "second", "never")
HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Setting:
    """How the device runs a program. `compile_when` matters to fused programs only."""

    mode: str
    compile_when: str | None = None

    def __str__(self) -> str:
        return "-".join(filter(None, (self.mode, self.compile_when)))

    def missing(self) -> str | None:
        """Why this build cannot be set so."""
        fused = getattr(torch_tpu, "fused", None)
        if self.compile_when is not None and not hasattr(fused, "compile_when"):
            return "torch_tpu.fused.compile_when does not exist yet"
        return None

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        with torch_tpu.mode(self.mode):  # type: ignore[arg-type]
            if self.compile_when is None:
                yield
                return
            torch_tpu.fused.compile_when(self.compile_when)
            try:
                yield
            finally:
                torch_tpu.fused.compile_when("second")

    @property
    def passes(self) -> int:
        """A fused program may be compiled only when it is seen again."""
        return 2 if self.mode == "fused" else 1


@dataclass(frozen=True)
class Failure:
    kind: str  # "raises" or "differs"
    detail: str


class UnstableError(Exception):
    """Rounding alone changes the results of this program."""


@dataclass
class Expected:
    """What the CPU gives, and how far each number moves when the data do by a rounding error."""

    results: dict[str, Any]
    slack: dict[str, float]


def results_of(names: Names) -> dict[str, Any]:
    """All that is compared, on the CPU. Its order is that of the program."""
    found: dict[str, Any] = {f"seen[{i}]": value for i, value in enumerate(names["seen"])}
    for name, x in sorted(tensors_in(names).items()):
        found[name] = x.detach().cpu().resolve_conj()
        strides = zip(x.shape, x.stride(), strict=True)
        found[f"{name}.stride()"] = tuple(stride for size, stride in strides if size > 1)
        if x.is_leaf and x.grad is not None:
            found[f"{name}.grad"] = x.grad.detach().cpu()
    return found


def expected_of(nodes: list[Node]) -> Expected:
    text = listing(nodes)
    size = 4e-3 if any(half in text for half in HALVES) else 2e-6
    results = results_of(run(nodes, "cpu"))
    slack = dict.fromkeys(results, 20 * size)
    for sign in (1, -1):

        def nudged(seed: int, *args: Any, sign: int = sign, **kwargs: Any) -> torch.Tensor:
            x = draw(seed, *args, **kwargs)
            if not x.is_floating_point() and not x.is_complex():
                return x
            return x * (1 + sign * size * draw(seed + 1, tuple(x.shape), torch.float64)).to(x.dtype)

        other = results_of(run(nodes, "cpu", nudged))
        if other.keys() != results.keys():
            raise UnstableError
        for name, value in results.items():
            moved = distance(other[name], value)
            if moved > 0.02 + 20 * size:
                raise UnstableError
            slack[name] = max(slack[name], 20 * size + 20 * moved)
    return Expected(results, slack)


def distance(got: Any, want: Any) -> float:
    """How far apart two results are, relative to 1 and to their size; infinite if of two kinds."""
    if isinstance(want, list | tuple):
        if type(got) is not type(want) or len(got) != len(want):
            return math.inf
        return max((distance(g, w) for g, w in zip(got, want, strict=True)), default=0.0)
    if isinstance(want, float | complex) and type(got) is type(want):
        return abs(got - want) / (1 + abs(want))
    if not isinstance(want, torch.Tensor):
        return 0.0 if type(got) is type(want) and got == want else math.inf
    if got.dtype != want.dtype or got.shape != want.shape:
        return math.inf
    if want.numel() == 0:
        return 0.0
    if not (want.is_floating_point() or want.is_complex()):
        return 0.0 if torch.equal(got, want) else math.inf
    wide = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    far = float(((got - want).abs() / (1 + want.abs())).max())
    return math.inf if math.isnan(far) else far


def check(nodes: list[Node], setting: Setting) -> Failure | None:
    """Runs a program in both places."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = expected_of(nodes)
        for _ in range(setting.passes):
            failure = _run_and_compare(nodes, setting, expected)
            if failure:
                return failure
    return None


def _run_and_compare(nodes: list[Node], setting: Setting, expected: Expected) -> Failure | None:
    try:
        with setting.applied():
            got = results_of(run(nodes, "tpu"))
    except Exception as error:
        lines = listing(nodes).splitlines()
        frames = traceback.extract_tb(error.__traceback__)
        where = [f.lineno for f in frames if f.filename == "<fuzz>" and f.lineno]
        line = lines[where[-1] - 1].strip() if where else "at the end"
        return Failure("raises", f"{line}: {type(error).__name__}: {error}")
    if got.keys() != expected.results.keys():
        return Failure("differs", f"results: {sorted(got.keys() ^ expected.results.keys())}")
    for name, want in expected.results.items():
        if distance(got[name], want) > expected.slack[name]:
            return Failure("differs", f"{name} is\n{got[name]}\nand on the CPU\n{want}")
    return None


SIZES = (4, 6, 8, 10, 12, 14)
_FOUR = re.compile(r"(?<![\w.])4(?![\w.])")


def sized(nodes: list[Node], size: int) -> list[Node]:
    """The program with another size wherever it says 4."""
    out = copy.deepcopy(nodes)
    for path in _paths(out):
        body: Any = out
        for i, part in zip(path[:-1:2], path[1::2], strict=True):
            body = getattr(body[i], part)
        if isinstance(body[path[-1]], Line):
            body[path[-1]].text = _FOUR.sub(str(size), body[path[-1]].text)
    return out


def check_sizes(nodes: list[Node], setting: Setting) -> tuple[Failure | None, int]:
    """Runs a program in both places with one size after the other, those that the CPU takes; and
    how many these were."""
    done = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in SIZES:
            other = sized(nodes, size)
            try:
                expected = expected_of(other)
            except Exception:  # UnstableError as well
                continue
            failure = _run_and_compare(other, setting, expected)
            if failure:
                return Failure(failure.kind, f"size {size}: {failure.detail}"), done
            done += 1
    return None, done


def stable_program(seed: int, blocks: int = 5, trips: int = 6) -> list[Node]:
    """The first program of this seed whose results do not hang on rounding."""
    for attempt in itertools.count():
        nodes = make(seed + 1_000_003 * attempt, blocks, trips)
        with contextlib.suppress(UnstableError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected_of(nodes)
            return nodes
    raise AssertionError


# --- making it small -----------------------------------------------------------------------------


def reduced(nodes: list[Node], setting: Setting, kind: str, seconds: float) -> list[Node]:
    """A part of the program that still fails in this way, made within the time given."""
    until = time.monotonic() + seconds

    def fails(part: list[Node]) -> bool:
        try:
            failure = check(part, setting)
        except Exception:  # the CPU does not take it: something needed is gone
            return False
        return failure is not None and failure.kind == kind

    best, smaller = nodes, True
    while smaller:
        smaller = False
        for part in _smaller(best):
            if time.monotonic() > until:
                return best
            if fails(part):
                best, smaller = part, True
                break
    return best


def _smaller(nodes: list[Node]) -> Iterator[list[Node]]:
    """Smaller programs, the boldest cuts first."""
    size = len(nodes) // 2
    while size > 1:
        for start in range(0, len(nodes), size):
            yield nodes[:start] + nodes[start + size :]
        size //= 2
    for path in reversed(list(_paths(nodes))):
        for edit in (_nothing, _unwrapped, _half_the_trips, _one_trip_less):
            edited = _edited(copy.deepcopy(nodes), path, edit)
            if edited is not None:
                yield edited


def _paths(nodes: list[Node], above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for i, node in enumerate(nodes):
        yield (*above, i)
        if not isinstance(node, Line):
            yield from _paths(node.body, (*above, i, "body"))
        if isinstance(node, Thread):
            yield from _paths(node.beside, (*above, i, "beside"))


def _edited(
    nodes: list[Node], path: tuple[Any, ...], edit: Callable[[Node], list[Node] | None]
) -> list[Node] | None:
    body = nodes
    for i, part in zip(path[:-1:2], path[1::2], strict=True):
        body = getattr(body[i], part)
    new = edit(body[path[-1]])
    if new is None:
        return None
    body[path[-1] : path[-1] + 1] = new
    return nodes


def _nothing(node: Node) -> list[Node] | None:
    return []


def _unwrapped(node: Node) -> list[Node] | None:
    if isinstance(node, Line) or (isinstance(node, Loop) and node.trips > 1):
        return None
    return [*node.body, *(node.beside if isinstance(node, Thread) else ())]


def _half_the_trips(node: Node) -> list[Node] | None:
    if not isinstance(node, Loop) or node.trips < 4:
        return None
    return [Loop(node.body, node.trips // 2)]


def _one_trip_less(node: Node) -> list[Node] | None:
    if not isinstance(node, Loop) or node.trips == 1:
        return None
    return [Loop(node.body, node.trips - 1)]


def report(seed: int, nodes: list[Node], setting: Setting, seconds: float) -> str | None:
    """What to say about a failing program, or None if it is right."""
    first = check(nodes, setting)
    if first is None:
        return None
    small = reduced(nodes, setting, first.kind, seconds)
    now = check(small, setting) or first  # a race may hide
    return (
        f"seed {seed}, {setting}: {now.kind}: {now.detail}\n"
        f'\n{HEADER}device = "tpu"  # right on "cpu"\n{listing(small)}\n'
    )
