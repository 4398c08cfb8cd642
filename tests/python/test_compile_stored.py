"""PyTorch's AOTAutograd cache with backend="tpu": what a later process finds, and when it must not
find anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import RunPython
from torch import fx

from torch_tpu._compile import graph_bytes, stored
from torch_tpu._compile.options import Options

_TRAIN = """
    import json, sys, torch, torch_tpu
    from torch._dynamo.utils import counters
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(DROPOUT), torch.nn.Linear(16, 3)
    ).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    run = torch.compile(model, backend="tpu", options=OPTIONS)
    update = torch.compile(optimizer.step, backend="tpu")
    losses = []
    for n in SIZES:
        loss = run(torch.ones(n, 8, device="tpu")).square().sum()
        loss.backward()
        update()
        optimizer.zero_grad()
        losses.append(loss.item())
    torch_tpu.fused.wait()  # what quick code is followed by
    print(json.dumps({
        "losses": losses,
        "graphs": sum(counters["torch_tpu"].values()),
        **counters["aot_autograd"],
        "compiles": torch_tpu.stats()["compiles"],
        "inductor": [m for m in ("codegen.wrapper", "codegen.cpp", "lowering")
                     if "torch._inductor." + m in sys.modules],
    }))
"""


class Train:
    """Runs the script in a process of its own, with caches under one folder."""

    def __init__(self, run_python: RunPython, folder: Path) -> None:
        self._run = run_python
        self._folder = folder

    def __call__(
        self,
        sizes: tuple[int, ...] = (4, 4),
        dropout: float = 0.5,
        before: str = "",
        after: str = "",
        **options: Any,
    ) -> dict[str, Any]:
        """The options are torch.compile's."""
        code = _TRAIN.replace("SIZES", repr(sizes)).replace("OPTIONS", repr(options))
        code = code.replace("DROPOUT", repr(dropout))
        return dict(
            json.loads(
                self._run(
                    f"{before}\n{_dedent(code)}\n{after}",
                    TORCHINDUCTOR_AUTOGRAD_CACHE="1",
                    TORCHINDUCTOR_CACHE_DIR=str(self._folder / "torch"),
                    TORCH_TPU_CACHE_DIR=str(self._folder / "tpu"),
                ).splitlines()[-1]
            )
        )


def _dedent(code: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in code.splitlines())


@pytest.fixture
def train(run_python: RunPython, tmp_path: Path) -> Train:
    return Train(run_python, tmp_path)


def test_second_process_traces_nothing(train: Train) -> None:
    first, second = train(), train()
    assert first["autograd_cache_miss"] == first["autograd_cache_saved"] == 2  # model, optimizer
    assert first["graphs"] == 3
    assert second["autograd_cache_hit"] == 2
    assert second["graphs"] == 0
    assert second["compiles"] == 0
    assert second["losses"] == first["losses"]
    assert first["inductor"] == second["inductor"] == []


def test_sizes_that_vary(train: Train) -> None:
    sizes = (20, 24, 33, 20, 64)
    # Eager ops beside the graphs meet their sizes in another order once some are on disk.
    first, _, second = (train(sizes, 0.0) for _ in range(3))
    assert second["graphs"] == 0
    assert second["compiles"] == 0
    assert second["losses"] == pytest.approx(first["losses"])
    # The symbolic graph serves sizes it was not stored with.
    other = train((40, 50, 45), 0.0)
    assert other["autograd_cache_hit"] > 0
    assert other["losses"] == pytest.approx(train((40, 50, 45), 0.0, bounded=False)["losses"])


def test_other_options_and_versions_find_nothing(train: Train) -> None:
    train()
    assert train(max_variants=3)["autograd_cache_miss"] == 1  # the optimizer has no options
    changed = "import torch_tpu._compile.stored as s; v = s.version(); s.version = lambda: v + 'x'"
    assert train(before=changed)["autograd_cache_miss"] == 2


def test_artifacts_travel(run_python: RunPython, tmp_path: Path) -> None:
    file = tmp_path / "artifacts"
    save = (
        f"open({str(file)!r}, 'wb').write(torch.compiler.save_cache_artifacts()[0]); "
        "print(json.dumps({}))"
    )
    load = f"import torch; torch.compiler.load_cache_artifacts(open({str(file)!r}, 'rb').read())"
    Train(run_python, tmp_path / "here")(after=save)
    there = Train(run_python, tmp_path / "there")(before=load)
    assert there["autograd_cache_hit"] == 2
    assert there["graphs"] == 0


def test_off_where_the_cache_is(train: Train) -> None:
    off = "import torch; torch.compiler.config.force_disable_caches = True"
    assert "autograd_cache_miss" not in train(before=off)


def test_entry_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = stored.StoredGraph(_doubled(torch.empty(3, device="tpu")), "inference", Options(), None)
    graph.prepare_for_serialization()
    graph.post_compile([], None, {})
    assert graph([torch.ones(3, device="tpu")])[0].tolist() == [2, 2, 2]
    monkeypatch.setattr(stored, "version", lambda: "another")
    with pytest.raises(RuntimeError, match="another version"):
        graph.post_compile([], None, {})


def test_constants_are_not_trusted_to_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored.autograd_cache, "should_use_local_autograd_cache", lambda: True)
    gm = _doubled(torch.empty(3, device="tpu"))
    assert stored.storable(gm)
    gm.some_constant = torch.ones(3)
    assert not stored.storable(gm)


def test_graph_as_bytes() -> None:
    gm = _doubled(torch.empty(3, 4, device="tpu"))
    gm._constant = torch.arange(4.0)
    with gm.graph.inserting_before(gm.graph.output_node()):
        gm.graph.create_node("get_attr", "_constant")
    found = graph_bytes.loads(graph_bytes.dumps(gm))
    assert str(found.graph) == str(gm.graph)
    assert torch.equal(found._constant, gm._constant)
    for old, new in zip(gm.graph.nodes, found.graph.nodes, strict=True):
        if "val" in old.meta:
            assert new.meta["val"].shape == old.meta["val"].shape
            assert new.meta["val"].device == old.meta["val"].device


def test_large_constants_are_not_stored() -> None:
    gm = _doubled(torch.empty(3, device="tpu"))
    gm._constant = torch.zeros(1 << 20)
    gm.graph.create_node("get_attr", "_constant")
    with pytest.raises(graph_bytes.UnstorableError):
        graph_bytes.dumps(gm)


def _doubled(x: torch.Tensor) -> fx.GraphModule:
    graph = fx.Graph()
    mode = torch._subclasses.FakeTensorMode()
    with mode:
        fake = torch.empty(x.shape, device=x.device)
    given = graph.placeholder("x")
    made = graph.call_function(torch.ops.aten.mul.Tensor, (given, 2))
    given.meta["val"] = made.meta["val"] = fake
    graph.output((made,))
    return fx.GraphModule({}, graph)
