"""torch_tpu.ops over ranks: parts along a dimension, ragged parts, pairs; the order of ranks; and
the backend by its second name."""

from __future__ import annotations

from distributed.ranks import Ranks, free_port


def along_dimensions() -> bool:
    import torch
    import torch.distributed as dist

    from torch_tpu import ops

    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.full((2, 3), float(rank), device="tpu", requires_grad=True)
    gathered = ops.all_gather_dim(mine, 1)
    want = torch.cat([torch.full((2, 3), float(r)) for r in range(size)], 1)
    assert torch.equal(gathered.detach().cpu(), want)
    (gathered * torch.arange(3.0 * size, device="tpu")).sum().backward()
    columns = torch.arange(3.0 * size)[3 * rank : 3 * rank + 3] * size
    assert torch.equal(mine.grad.cpu(), columns.expand(2, 3))

    whole = torch.arange(4.0 * size, device="tpu").view(2, 2 * size).requires_grad_()
    part = ops.reduce_scatter_dim(whole, -1)
    want = torch.arange(4.0 * size).view(2, 2 * size)[:, 2 * rank : 2 * rank + 2]
    assert torch.equal(part.detach().cpu(), want * size)
    (part * (rank + 1)).sum().backward()
    weights = torch.arange(1.0, size + 1).repeat_interleave(2).expand(2, 2 * size)
    assert torch.equal(whole.grad.cpu(), weights)
    assert torch.equal(ops.reduce_scatter_dim(whole.detach(), 1, "avg").cpu(), want)
    assert torch.equal(ops.reduce_scatter_dim(whole.detach(), 1, "max").cpu(), want)
    try:
        ops.reduce_scatter_dim(torch.ones(3, device="tpu"), 0)
    except ValueError as error:
        return "cannot be divided among" in str(error)
    return False


def ragged() -> bool:
    """Rank r sends r + 1 rows to rank 0, and two to each other one; all find them in order."""
    import torch
    import torch.distributed as dist

    from torch_tpu import ops

    rank, size = dist.get_rank(), dist.get_world_size()

    def counts(sender: int) -> list[int]:
        return [sender + 1, *[2] * (size - 1)]

    sends = counts(rank)
    receives = [counts(r)[rank] for r in range(size)]
    starts = [sum(sends[:r]) for r in range(size)]
    # Where my rows begin at each receiver: behind those of the ranks before me.
    places = [1 + sum(counts(r)[to] for r in range(rank)) for to in range(size)]
    operand = torch.full((sum(sends), 2), float(rank), device="tpu", requires_grad=True)
    output = torch.full((sum(receives) + 2, 2), -1.0, device="tpu", requires_grad=True)
    numbers = [torch.tensor(n, device="tpu") for n in (starts, sends, places, receives)]
    result = ops.ragged_all_to_all(operand, output, *numbers)
    middle = torch.cat([torch.full((n, 2), float(r)) for r, n in enumerate(receives)])
    edge = torch.full((1, 2), -1.0)
    assert torch.equal(result.detach().cpu(), torch.cat([edge, middle, edge]))
    (result * (rank + 1)).sum().backward()
    want = torch.cat([torch.full((n, 2), float(to + 1)) for to, n in enumerate(sends)])
    assert torch.equal(operand.grad.cpu(), want)
    kept = output.grad.cpu()[:, 0] / (rank + 1)
    return kept.tolist() == [1.0, *[0.0] * sum(receives), 1.0]


def pairs() -> float:
    import torch
    import torch.distributed as dist

    from torch_tpu import ops

    rank = dist.get_rank()
    if rank == 0:
        ops.send(torch.full((2,), 7.0, device="tpu"), 1)
        return 7.0
    return float(ops.recv(torch.zeros(2, device="tpu"), 0)[0])


def order() -> list[list[int]]:
    import torch

    mesh: list[list[int]] = torch.tpu.topology_aware_mesh((2, 1)).tolist()
    return mesh


def test_parts_along_a_dimension(two: Ranks) -> None:
    assert two.run(along_dimensions) == [True] * 2


def test_ragged_parts(two: Ranks) -> None:
    assert two.run(ragged) == [True] * 2


def test_pairs(two: Ranks) -> None:
    assert two.run(pairs) == [7.0] * 2


def test_order_of_ranks(two: Ranks) -> None:
    assert two.run(order) == [[[0], [1]]] * 2


def test_second_name_of_the_backend(run_python) -> None:
    for name in ("tpu_dist", "cpu:gloo,tpu:tpu_dist"):
        out = run_python(
            f"""
            import torch
            import torch.distributed as dist
            dist.init_process_group(
                "{name}", init_method="tcp://127.0.0.1:{free_port()}", rank=0, world_size=1
            )
            x = torch.full((2,), 3.0, device="tpu")
            dist.all_reduce(x)
            dist.barrier()
            print(x.tolist(), dist.get_default_backend_for_device("tpu"))
            dist.destroy_process_group()
            """
        )
        assert out.splitlines()[0] == "[3.0, 3.0] tpu"


def test_without_a_group() -> None:
    import pytest
    import torch

    from torch_tpu import ops, spmd

    with pytest.raises(RuntimeError, match="init_process_group"):
        ops.all_gather_dim(torch.ones(2, device="tpu"))
    with pytest.raises(RuntimeError, match=r"\[topology_aware_mesh\] the process group must"):
        torch.tpu.topology_aware_mesh((1,))
    with pytest.raises(RuntimeError, match=r"\[device_mesh\] the process group must"):
        spmd.device_mesh((1,), ("x",))
