"""A DeviceMesh whose order follows the torus, over four ranks."""

from __future__ import annotations

from distributed.ranks import Ranks

# Of ranks 0 to 3, on two by two chips, in an order that is no walk.
PLACES = [(0, 0, 0), (1, 1, 0), (0, 1, 0), (1, 0, 0)]


def mesh_over(places: list[tuple[int, int, int]] | None) -> tuple[list[list[int]], float]:
    import torch
    import torch.distributed as dist

    from torch_tpu.spmd import _ranks

    plain = _ranks._attributes
    try:
        if places is not None:
            place = places[dist.get_rank()]
            _ranks._attributes = lambda: {"coords": list(place), "core_on_chip": 0}
        mesh = _ranks.device_mesh((2, 2), ("dp", "tp"))
    finally:
        _ranks._attributes = plain
    x = torch.full((), 10.0 ** dist.get_rank(), device="tpu")
    dist.all_reduce(x, group=mesh.get_group("tp"))
    return mesh.mesh.tolist(), x.item()


def test_neighbours_on_the_torus(four: Ranks) -> None:
    results = four.run(mesh_over, PLACES)
    rows = results[0][0]
    assert all(r[0] == rows for r in results)
    for a, b in rows:
        assert sum(abs(p - q) for p, q in zip(PLACES[a], PLACES[b], strict=True)) == 1
        assert results[a][1] == results[b][1] == 10.0**a + 10.0**b
    assert rows[0][0] == 0
    assert rows != [[0, 1], [2, 3]]


def test_devices_without_coordinates(four: Ranks) -> None:
    assert four.run(mesh_over, None)[3][0] == [[0, 1], [2, 3]]
