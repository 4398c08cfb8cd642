"""A child process with libtpu in it: compiles collectives and partitioned programs for a topology.

python tpu_child.py TOPOLOGY [FOLDER...]; FOLDERs are searched for libtpu as well.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from conformance.children import serve
from spmd.checks_programs import GPT, PLAN, Config

from torch_tpu import _C, spmd
from torch_tpu.spmd import Shard, _hlo
from torch_tpu.spmd._torus import torus_order

# Under other names before torch 2.13.
all_gather_single = getattr(funcol, "all_gather_single", None) or funcol.all_gather_tensor
reduce_scatter_single = (
    getattr(funcol, "reduce_scatter_single", None) or funcol.reduce_scatter_tensor
)


def step_text(shape: list[int]) -> str:
    """A training step of a small GPT over such a mesh of XLA:CPU devices."""
    mesh = spmd.mesh(shape, ("dp", "tp"))
    config = Config(vocab=256, context=128, layers=1, width=256)
    model = spmd.shard_module(GPT(config), mesh, PLAN)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @spmd.compile
    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    tokens = spmd.shard(torch.randint(256, (8, 128)), mesh, {"dp": Shard(0)})
    step(tokens, tokens)
    return step.text()


def layer_texts(shape: list[int]) -> list[str]:
    """A layer that says its collectives: forward, backward, and both inside a compiled step."""
    mesh = spmd.mesh(shape, ("dp", "tp"))
    tp = mesh.group("tp")
    size = shape[1]
    table = [[8 * (1 + (i + j) % 2) for j in range(size)] for i in range(size)]

    def part(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        made = torch.relu(all_gather_single(x, 0, tp) @ up) @ down
        x = x + reduce_scatter_single(made, "sum", 0, tp)
        x = spmd.permute(x, [*range(1, size), 0], tp)
        x = funcol.broadcast(funcol.all_to_all_single(x, None, None, tp), 1, tp)
        rows = max(map(sum, table))
        return spmd.all_to_all(x[:1].expand(rows, -1), table, tp).sum(0, keepdim=True)

    every = mesh.placements([Shard(0), Shard(0)])
    columns = mesh.placements({"tp": Shard(1)})
    rows = mesh.placements({"tp": Shard(0)})
    layer = spmd.per_device(part, mesh, every, [every, columns, rows])
    x = spmd.shard(torch.randn(shape[0] * size * 8 * size, 128), mesh, every)
    up = spmd.shard(torch.randn(128, 128 * size), mesh, columns).requires_grad_()
    down = spmd.shard(torch.randn(128 * size, 128), mesh, rows).requires_grad_()
    layer(x, up, down).sum().backward()
    ((_, made),) = layer._variants.values()
    (backward,) = (p for local in made.backward.values() for p in local.programs())

    @spmd.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        up.grad = down.grad = None
        layer(x.tanh(), up, down).sum().backward()
        return up.grad

    step(x)
    return [layer.text(), backward.text, step.text()]


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
            if "layer" in task:
                devices = task["layer"][0] * task["layer"][1]
                *others, text = layer_texts(task["layer"])
                for other in others:
                    _C._compile_sharded_for(topology, other, devices)
            elif "step" in task:
                text = step_text(task["step"])
                devices = task["step"][0] * task["step"][1]
            elif "kind" in task:
                dtype, devices = getattr(torch, task["dtype"]), task["size"]
                sizes = task["inputs"], task["outputs"]
                root = devices - 1
                text = _C._xla_module(task["kind"], dtype, *sizes, devices, task["reduction"], root)
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
