"""A child process with libtpu in it: compiles collectives and partitioned programs for a topology.

python tpu_child.py TOPOLOGY [FOLDER...]; FOLDERs are searched for libtpu as well.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from conformance.children import serve

from torch_tpu import _C, spmd
from torch_tpu.spmd import Shard, _hlo
from torch_tpu.spmd._torus import torus_order


def step_text(shape: list[int]) -> str:
    """A training step over such a mesh of XLA:CPU devices."""
    mesh = spmd.mesh(shape, ("dp", "tp"))
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)
    )
    plan: dict[str, Any] = {"0.*": {"tp": Shard(0)}, "2.weight": {"tp": Shard(1)}}
    spmd.shard_module(model, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @spmd.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step(spmd.shard(torch.randn(64, 256), mesh, {"dp": Shard(0)}))
    return step.text()


def main() -> None:
    name, *folders = sys.argv[1:]
    _C._set_search_dirs([*folders, *_C._search_dirs()])
    topology = _C._Topology(name, "tpu")

    def answer(task: dict[str, Any]) -> dict[str, Any]:
        if "order" in task:
            attributes = _C._topology_attributes(topology)
            order = torus_order(attributes, task["order"])
            places = [[*attributes[i]["coords"], attributes[i]["core_on_chip"]] for i in order]
            return {"status": "ok", "places": places}
        try:
            if "step" in task:
                text = step_text(task["step"])
                devices = task["step"][0] * task["step"][1]
            else:
                dtype = getattr(torch, task["dtype"])
                groups = task["groups"]
                devices = sum(map(len, groups))
                dims = [devices * 8, 128]
                text = _C._collective_module(task["op"], dtype, dims, groups, task["reduction"])
            program = _C._compile_sharded_for(topology, text, devices)
        except RuntimeError as error:
            return {"status": "refused", "detail": str(error)[:600]}
        found = [[c.kind, c.groups] for c in _hlo.collectives(program)]
        return {"status": "ok", "collectives": found}

    serve(answer)


if __name__ == "__main__":
    main()
