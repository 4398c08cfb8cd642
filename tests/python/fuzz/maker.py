"""Makes a random program from a seed.

Each line is tried on the CPU as soon as it is made, so that the choices for the next one are made
knowing shapes, dtypes, aliases and values. A line that the CPU refuses, or that makes large
numbers, is taken back.
"""

from __future__ import annotations

import random
import re
import warnings

import torch

from . import rules
from .program import (
    Line,
    Loop,
    Names,
    Node,
    NoGrad,
    Thread,
    draw,
    execute,
    fresh_names,
    run,
    tensors_in,
)

# Few, so that programs of single ops are shared; of 2 and 4 only, so that they fit each other.
SHAPES = ("(4,)", "(2, 4)", "(4, 4)", "(4, 4)", "(2, 4, 4)", "(2, 2, 4, 4)", "()")
FLOATS = ("torch.float32",) * 8 + ("torch.float64", "torch.bfloat16")
DTYPES = (*FLOATS, *("torch.int64",) * 4, "torch.int32", "torch.bool", *("torch.complex64",) * 3)
# What every program begins with.
START = (
    *("(4, 4)).to(device)", "(2, 4, 4)).to(device)", "(4,), torch.bool).to(device)"),
    *("(4, 4), torch.int64).to(device)", "{shape}, {dtype}).to(device)"),
    *("{shape}, {dtype}).to(device)", "(4, 4)).to(device).requires_grad_()"),
    "(4, 4)).to(device).requires_grad_()",
)
LARGEST = 30.0
MOST_ELEMENTS = 256
POOL = 14  # tensors beyond this number are dropped again


class NoChoiceError(Exception):
    """The pool has nothing that fits the template."""


class Maker:
    def __init__(self, seed: int, trips: int) -> None:
        self.random = random.Random(seed)
        self._most_trips = trips
        self.program: list[Node] = []
        self.names: Names = fresh_names("cpu")
        self._body = self.program  # where lines go
        self._own: set[str] | None = None  # names a thread may use; None: all
        self._bound: set[str] = set()  # names made in the block at hand
        self._in_loop = False
        self._in_graph = False
        self._reads = True
        self._count = 0

    # --- the program -----------------------------------------------------------------------------

    def make(self, blocks: int) -> list[Node]:
        for data in START:
            self._line([f"{{new}} = draw({{seed}}, {data}"])
        for _ in range(blocks):
            kinds = (self._lines, self._loop, self._graph, self._no_grad, self._thread)
            self.random.choices(kinds, (5, 4, 2, 1, 1))[0]()
        return self.program

    def _lines(self, low: int = 2, high: int = 6) -> None:
        for _ in range(self.random.randint(low, high)):
            weights, families = zip(*rules.FAMILIES, strict=True)
            family = self.random.choices(families, weights)[0]
            if family is rules.READS and not self._reads:
                continue
            full = len(self._visible()) > POOL and self._droppable()
            self._line(rules.DROPS if full else family)

    def _loop(self) -> None:
        loop = Loop()
        self._in_loop = True
        self.names["i"] = 0
        self._open(loop, loop.body)
        for _ in range(self.random.randint(1, 2)):
            kinds = (self._lines, self._graph, self._thread)
            self.random.choices(kinds, (8, 3, 1))[0]()
        self._close(self.program)
        self._in_loop = False
        # The body was made for its first pass; the next ones may find other shapes.
        for loop.trips in (self.random.randint(2, self._most_trips), 2, 1):
            if self._replay():
                return

    def _no_grad(self) -> None:
        block = NoGrad()
        outer = self._body
        self._open(block, block.body)
        with torch.no_grad():
            self._lines()
        self._close(outer)

    def _thread(self) -> None:
        """Two threads at once. Each has tensors of its own: no two of them share a storage."""
        block = Thread()
        outer = self._body
        pool = tensors_in(self.names)
        storages = list(dict.fromkeys(_storage(x) for x in pool.values()))
        mine = self.random.sample(storages, len(storages) // 2)
        theirs = {n for n, x in pool.items() if _storage(x) in mine}
        self._own, self._reads = theirs, False
        self._open(block, block.body)
        self._lines()
        self._own, self._reads = set(pool) - theirs, True
        self._open(None, block.beside)
        self._lines(0, 4)
        self._own = None
        self._close(outer)

    def _graph(self) -> None:
        """A forward part, a backward part, and something done with the gradients."""
        before = set(tensors_in(self.names))
        self._in_graph = True
        for _ in range(self.random.randint(2, 5)):
            self._line(rules.GRAPH)
        self._line(rules.BACKWARD)
        self._in_graph = False
        for _ in range(self.random.randint(1, 3)):
            self._line(rules.STEPS)
        # What is left of the graph may not be used in another one.
        for name, x in tensors_in(self.names).items():
            if x.requires_grad and not x.is_leaf:
                keep = name in before or self.random.random() < 0.5
                self._try(f"{name} = {name}.detach()" if keep else f"del {name}")

    def _open(self, block: Node | None, body: list[Node]) -> None:
        if block is not None:
            self._body.append(block)
        self._body = body
        self._bound = set()

    def _close(self, outer: list[Node]) -> None:
        self._body = outer
        self._bound = set()

    # --- one line --------------------------------------------------------------------------------

    def _line(self, family: list[str]) -> None:
        for _ in range(6):
            try:
                text = self._fill(self.random.choice(family))
            except NoChoiceError:
                continue
            if self._try(text):
                return

    def _try(self, text: str) -> bool:
        """Runs the line and keeps it if it went well."""
        self._body.append(Line(text))
        known = set(self.names)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                execute(text, self.names)
            good = _is_tame(self.names)
        except Exception:
            good = False
        if not good:
            self._body.pop()
            replayed = self._replay()
            assert replayed
            return False
        made = set(self.names) - known
        self._bound |= made
        if self._own is not None:
            self._own |= made
        self._rebind(text, made)
        return True

    def _rebind(self, text: str, made: set[str]) -> None:
        """Now and then the result takes the name of a tensor that is like it."""
        tensors = made & tensors_in(self.names).keys()
        if "\n" in text:  # the new name may be used before the old one was read
            return
        if len(tensors) != 1 or len(self.program) <= len(START) or self.random.random() > 0.2:
            return
        (new,) = tensors
        x = self.names[new]
        others = [t for n, t in tensors_in(self.names).items() if n != new]
        if self._in_loop and any(_storage(t) == _storage(x) for t in others):
            return  # an alias that the lines above did not know when they were made
        like = [n for n in self._choices(None) if n != new and _kind(self.names[n]) == _kind(x)]
        like = [n for n in like if not self.names[n].requires_grad and not x.requires_grad]
        if like:
            old = self.random.choice(like)
            self._body[-1] = Line(re.sub(rf"\b{new}\b", old, text))
            self.names[old] = self.names.pop(new)
            self._bound.discard(new)

    def _replay(self) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                names = run(self.program, "cpu", draw)
        except Exception:
            return False
        if not _is_tame(names):
            return False
        self.names = names
        self.names.setdefault("i", 0)
        return True

    # --- filling a template ----------------------------------------------------------------------

    def _fill(self, template: str) -> str:
        chosen: dict[str, str] = {}

        def value(match: re.Match[str]) -> str:
            key = match.group(1)
            if key == "s":
                return self._float()
            if key not in chosen:
                chosen[key] = self._value(key, chosen)
            return chosen[key]

        # Tensors first: the others fit them. Among those, the ones without a digit.
        for key in sorted(re.findall(r"\{([a-zA-Z]\d?)\}", template), key=lambda k: len(k)):
            if key not in ("s", "j"):
                chosen.setdefault(key, self._tensor(key, chosen))
        return re.sub(r"\{(\w+)\}", value, template)

    def _value(self, key: str, chosen: dict[str, str]) -> str:
        pick = self.random.choice
        if key in ("new", "new2", "scalar"):
            self._count += 1
            return ("s" if key == "scalar" else "t") + str(self._count)
        if key == "j":
            return pick(("1", "2", "3", "-1", *(("i", "i + 1") if self._in_loop else ())))
        if key == "dim":
            rank = self.names[next(iter(chosen.values()))].dim()
            return str(self.random.randrange(-1, max(rank, 1)))
        if key == "seed":
            return str(self.random.randrange(1000))
        if key == "loss":
            return self._one([n for n, x in self._visible() if x.requires_grad and not x.is_leaf])
        if key == "mine":
            return self._one(self._droppable())
        return pick({"shape": SHAPES, "dtype": DTYPES, "float": FLOATS}[key])

    def _float(self) -> str:
        known = [n for n, v in self.names.items() if re.match(r"s\d", n) and abs(v) < 3]
        if self._own is not None:
            known = [n for n in known if n in self._bound]
        kind = self.random.random()
        if self._in_loop and kind < 0.4:
            return self.random.choice(("0.1 * (i + 1)", "1.0 / (i + 2)", "(0.5 - i)"))
        if known and kind < 0.6:
            return self.random.choice(known)
        return str(round(self.random.uniform(-1.5, 1.5), 2))

    def _visible(self) -> list[tuple[str, torch.Tensor]]:
        pool = tensors_in(self.names).items()
        return [(n, x) for n, x in pool if self._own is None or n in self._own]

    def _droppable(self) -> list[str]:
        """In a block only what it has made itself: its next pass needs the rest."""
        inner = self._body is not self.program
        found = [n for n, x in self._visible() if not x.requires_grad]
        return [n for n in found if not inner or n in self._bound]

    def _choices(self, key: str | None) -> list[str]:
        return [n for n, x in self._visible() if key is None or self._fits(key, x)]

    def _fits(self, key: str, x: torch.Tensor) -> bool:
        """Whether the tensor is of the class that a letter stands for."""
        if key in "pg":
            return x.requires_grad and x.is_leaf and (key == "p" or x.grad is not None)
        if x.requires_grad and not self._in_graph:
            return False
        if self._in_graph and x.is_floating_point() and x.dtype != torch.float32:
            return False
        if key in "wkhzy" and not _is_writable(x):
            return False
        if key in "xy":
            return True
        if key in "fw":
            return x.is_floating_point()
        if key in "cz":
            return x.is_complex()
        if key in "bh":
            return x.dtype == torch.bool
        return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)

    def _tensor(self, key: str, chosen: dict[str, str]) -> str:
        found = self._choices(key[0].lower())
        if len(key) == 2 and chosen:
            found = [n for n in found if self._goes_with(next(iter(chosen)), chosen, key, n)]
        if self._in_graph and self.random.random() < 0.7:
            found = [n for n in found if self.names[n].requires_grad] or found
        return self._one(found)

    def _goes_with(self, first_key: str, chosen: dict[str, str], key: str, name: str) -> bool:
        """Whether a tensor fits the first one of the line."""
        first, x = self.names[chosen[first_key]], self.names[name]
        if key[0] in "fFw" and first.is_floating_point() and x.dtype != first.dtype:
            return False
        if key[1] in "89" and _storage(x) == _storage(first):
            return False
        if first_key in "wkhzy" and _overlap(x, first) and not _same_view(x, first):
            return False
        if key[0].isupper():
            return x.shape == first.shape
        return key[1] in "89" or _expands(x.shape, first.shape) or self.random.random() < 0.1

    def _one(self, found: list[str]) -> str:
        if not found:
            raise NoChoiceError
        return self.random.choice(found)


def make(seed: int, blocks: int, trips: int) -> list[Node]:
    """A program of so many blocks, whose loops run up to `trips` times."""
    return Maker(seed, trips).make(blocks)


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _same_view(x: torch.Tensor, y: torch.Tensor) -> bool:
    return (x.data_ptr(), x.stride(), _kind(x)) == (y.data_ptr(), y.stride(), _kind(y))


def _overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    return _storage(x) == _storage(y) and not _bytes(x).isdisjoint(_bytes(y))


def _bytes(x: torch.Tensor) -> set[int]:
    places = {0}
    for size, stride in zip(x.shape, x.stride(), strict=True):
        places = {p + i * stride for p in places for i in range(size)}
    width = x.element_size()
    return {x.data_ptr() + p * width + i for p in places for i in range(width)}


def _kind(x: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return x.shape, x.dtype


def _expands(shape: torch.Size, to: torch.Size) -> bool:
    try:
        return torch.broadcast_shapes(shape, to) == to
    except RuntimeError:
        return False


def _is_writable(x: torch.Tensor) -> bool:
    """Whether no two of its elements share memory."""
    dims = sorted(
        (stride, size) for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1
    )
    reach = 0
    for stride, size in dims:
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def _is_tame(names: Names) -> bool:
    """Whether all tensors are small, and so are their numbers."""
    found = list(tensors_in(names).values())
    found += [x.grad for x in found if x.is_leaf and x.grad is not None]
    for x in found:
        if x.numel() > MOST_ELEMENTS:
            return False
        inexact = x.is_floating_point() or x.is_complex()
        if inexact and not bool((x.detach().abs() <= LARGEST).all()):
            return False
    return True
