"""Every collective, and a partitioned training step, compiled by libtpu for topologies of 4 and 16
chips with none attached; and the order of devices from the coordinates that libtpu gives."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.children import Child

SITES = [s for s in os.environ.get("TORCH_TPU_TEST_SITE_PACKAGES", "").split(":") if s]
HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None or any(
    (Path(s) / "libtpu" / "libtpu.so").exists() for s in SITES
)
pytestmark = [
    pytest.mark.libtpu,
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not installed"),
]

Compile = Callable[[str, dict[str, Any]], dict[str, Any]]
SHAPES = {"v5e:2x2": (2, 2), "v5e:4x4": (4, 4)}
REDUCTIONS = ("sum", "avg", "product", "min", "max")
BITS = ("band", "bor", "bxor")
MOVES = ("all_gather", "all_to_all", "broadcast", "permute")
COLLECTIVES = [
    *((op, "float32", r) for op in ("all_reduce", "reduce_scatter") for r in REDUCTIONS),
    *((op, "int32", r) for op in ("all_reduce", "reduce_scatter") for r in BITS),
    *(("all_reduce", "int64", r) for r in ("sum", "product", "min", "max", "bxor")),
    *(("all_reduce", dtype, "max") for dtype in ("bfloat16", "uint8", "bool")),
    *((op, dtype, "sum") for op in MOVES for dtype in ("float32", "int64", "bool")),
]
IN_ROWS = [
    *((op, "bfloat16", "sum") for op in ("all_reduce", "reduce_scatter", *MOVES)),
    ("reduce_scatter", "int64", "min"),
]
# What each becomes; bitwise ones send everything.
KINDS = {
    "all_reduce": {"all-reduce"},
    "reduce_scatter": {"reduce-scatter", "all-reduce"},
    "all_gather": {"all-gather"},
    "all_to_all": {"all-to-all"},
    "broadcast": {"all-reduce", "collective-permute"},
    "permute": {"collective-permute"},
}


@pytest.fixture(scope="module")
def compile_for() -> Iterator[Compile]:
    children: dict[str, Child] = {}

    def run(topology: str, task: dict[str, Any]) -> dict[str, Any]:
        if topology not in children:
            script = str(Path(__file__).with_name("tpu_child.py"))
            command = [sys.executable, script, topology, *SITES]
            children[topology] = Child(command, 240.0, TORCH_TPU_CPU_DEVICES="16")
        answer = children[topology].run(task)
        assert answer["status"] == "ok", answer
        return answer

    yield run
    for child in children.values():
        child.stop()


@pytest.mark.parametrize("topology", SHAPES)
def test_every_collective_compiles(compile_for, topology):
    rows, columns = SHAPES[topology]
    everyone = [list(range(rows * columns))]
    in_rows = [list(range(r * columns, (r + 1) * columns)) for r in range(rows)]
    cases = [*((everyone, *case) for case in COLLECTIVES), *((in_rows, *c) for c in IN_ROWS)]
    for groups, op, dtype, reduction in cases:
        task = {"op": op, "dtype": dtype, "reduction": reduction, "groups": groups}
        answer = compile_for(topology, task)
        kinds = {kind for kind, _ in answer["collectives"]}
        assert kinds, task
        if reduction in BITS or (dtype == "int64" and reduction != "sum"):
            assert kinds <= {"all-gather", "all-to-all", "all-reduce"}, task
        else:
            assert kinds <= KINDS[op], (task, kinds)


DTYPES = (
    *("float32", "bfloat16", "float16", "float8_e4m3fn", "bool", "complex64"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float64"),
)


def test_the_programs_of_groups_compile(compile_for):
    """Those that the process group runs where a client spans its processes."""
    cases = []
    for dtype in DTYPES:
        for kind in ("all_reduce", "reduce_scatter"):
            ops = ["SUM", "PRODUCT"] if dtype == "complex64" else ["SUM", "PRODUCT", "MIN", "MAX"]
            ops += ["AVG"] if dtype != "bool" else []
            ops += ["BAND", "BXOR"] if "int" in dtype or dtype == "bool" else []
            rows = 2 if kind == "reduce_scatter" else 8
            cases += [(kind, dtype, op, [[8, 128]], [[rows, 128]]) for op in ops]
        cases.append(("all_gather", dtype, "SUM", [[3, 5]], [[12, 5]]))
        cases.append(("all_gather", dtype, "SUM", [[3, 5]], [[3, 5]] * 4))
        cases.append(("all_to_all", dtype, "SUM", [[8, 5]], [[8, 5]]))
        cases.append(("broadcast", dtype, "SUM", [[8, 5]], [[8, 5]]))
        cases.append(("reduce_scatter", dtype, "SUM", [[3, 5]] * 4, [[3, 5]]))
    for kind, dtype, reduction, inputs, outputs in cases:
        task = {"kind": kind, "dtype": dtype, "reduction": reduction, "size": 4}
        answer = compile_for("v5e:2x2", {**task, "inputs": inputs, "outputs": outputs})
        assert answer["collectives"], task


@pytest.mark.parametrize("topology", SHAPES)
def test_a_partitioned_step_compiles(compile_for, topology):
    rows, columns = SHAPES[topology]
    answer = compile_for(topology, {"step": [rows, columns]})
    groups = [[sorted(g) for g in groups] for _, groups in answer["collectives"]]
    along_tp = [list(range(r * columns, (r + 1) * columns)) for r in range(rows)]
    along_dp = [list(range(c, rows * columns, columns)) for c in range(columns)]
    assert along_tp in groups, answer["collectives"]
    assert along_dp in groups, answer["collectives"]


@pytest.mark.parametrize("topology", SHAPES)
def test_a_layer_with_its_own_collectives_compiles(compile_for, topology):
    """Forward, backward, and as a part of a partitioned program."""
    answer = compile_for(topology, {"layer": SHAPES[topology]})
    kinds = {kind for kind, _ in answer["collectives"]}
    assert {"all-gather", "all-to-all", "collective-permute"} <= kinds, kinds
    assert kinds & KINDS["reduce_scatter"], kinds


@pytest.mark.parametrize(
    ("topology", "shape"),
    [("v5e:4x4", (2, 8)), ("v5e:4x4", (4, 4)), ("tpu7x:2x2x1", (2, 4)), ("tpu7x:2x2x1", (4, 2))],
)
def test_the_order_follows_the_torus(compile_for, topology, shape):
    places = compile_for(topology, {"order": shape})["places"]
    assert len({tuple(p) for p in places}) == shape[0] * shape[1]
    for k in range(0, len(places), shape[1]):
        for a, b in itertools.pairwise(places[k : k + shape[1]]):
            assert sum(abs(p - q) for p, q in zip(a, b, strict=True)) == 1
