"""Every collective against Gloo on CPU tensors: all dtypes, all reductions, 2 and 4 ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed.ranks import Ranks

TPU = torch.device("tpu")
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
F8 = [torch.float8_e5m2, torch.float8_e4m3fn]
ALL = [*FLOATS, *INTS, *UNSIGNED, *F8, torch.bool, torch.complex64]
OPS = ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG"]


def data(dtype: torch.dtype, rank: int, shape: tuple[int, ...] = (3, 5)) -> torch.Tensor:
    """Small numbers, so that no dtype overflows and sums are exact."""
    generator = torch.Generator().manual_seed(17 + rank)
    numbers = torch.randint(0, 4, shape, generator=generator)
    if dtype == torch.bool:
        return numbers > 1
    if dtype == torch.complex64:
        return torch.complex(numbers.float(), numbers.float() + 1)
    return numbers.to(dtype)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    host = got.cpu()
    if host.dtype in (*UNSIGNED, *F8):
        host, want = host.double(), want.double()
    torch.testing.assert_close(host, want)


def expected(dtype: torch.dtype, op: str, size: int, shape: tuple[int, ...] = (3, 5)) -> Any:
    """The reduction by plain tensor ops, in the widest dtype."""
    parts = [data(dtype, rank, shape) for rank in range(size)]
    wide = torch.complex128 if dtype.is_complex else torch.float64
    if op in ("BAND", "BOR", "BXOR") or not (dtype.is_floating_point or dtype.is_complex):
        wide = torch.int64
    out = parts[0].to(wide)
    for part in parts[1:]:
        p = part.to(wide)
        out = {
            "SUM": lambda a, b: a + b,
            "AVG": lambda a, b: a + b,
            "PRODUCT": lambda a, b: a * b,
            "MIN": torch.minimum,
            "MAX": torch.maximum,
            "BAND": lambda a, b: a & b,
            "BOR": lambda a, b: a | b,
            "BXOR": lambda a, b: a ^ b,
        }[op](out, p)
    if op == "AVG":
        out = out / size if wide != torch.int64 else out.div(size, rounding_mode="trunc")
    return out.to(dtype)


def allowed(dtype: torch.dtype, op: str) -> bool:
    if op in ("BAND", "BOR", "BXOR"):
        return not dtype.is_floating_point and not dtype.is_complex
    if dtype.is_complex:
        return op in ("SUM", "AVG")
    return not (op == "AVG" and dtype == torch.bool)


def check_reductions() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in ALL:
        for op in OPS:
            if not allowed(dtype, op):
                continue
            reduce_op = getattr(dist.ReduceOp, op)
            want = expected(dtype, op, size)
            x = data(dtype, rank).to(TPU)
            dist.all_reduce(x, op=reduce_op)
            same(x, want)
            if dtype.is_complex:
                continue
            y = data(dtype, rank).to(TPU)
            dist.reduce(y, dst=1, op=reduce_op)
            same(y, want if rank == 1 else data(dtype, rank))
            whole = expected(dtype, op, size, (size * 2, 3))
            out = torch.empty(2, 3, dtype=dtype, device=TPU)
            dist.reduce_scatter_tensor(out, data(dtype, rank, (size * 2, 3)).to(TPU), op=reduce_op)
            same(out, whole[2 * rank : 2 * rank + 2])


def check_against_gloo() -> None:
    """What Gloo itself can reduce gives the same bits."""
    rank = dist.get_rank()
    for dtype in [*FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64]:
        for op in OPS[:4]:
            x = data(dtype, rank)
            y = x.to(TPU)
            dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
            dist.all_reduce(y, op=getattr(dist.ReduceOp, op))
            assert torch.equal(y.cpu(), x), (dtype, op)


def check_refusals() -> None:
    x = torch.ones(3, device=TPU)
    for call in (
        lambda: dist.all_reduce(x, op=dist.ReduceOp.BAND),
        lambda: dist.all_gather_into_tensor(torch.empty(5, device=TPU), x),
        lambda: dist.reduce_scatter_tensor(torch.empty(5, device=TPU), x),
    ):
        try:
            call()
        except (RuntimeError, ValueError):
            continue
        raise AssertionError("no error")
    dist.all_reduce(x)  # and the group is as good as before
    same(x, torch.full((3,), float(dist.get_world_size())))


def check_moves() -> None:
    """Collectives that only move data, all dtypes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in ALL:
        mine = data(dtype, rank).to(TPU)
        everyone = [data(dtype, r) for r in range(size)]
        x = mine.clone()
        dist.broadcast(x, src=1)
        same(x, everyone[1])
        outs = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(outs, mine)
        for got, want in zip(outs, everyone, strict=True):
            same(got, want)
        flat = torch.empty(size * 3, 5, dtype=dtype, device=TPU)
        dist.all_gather_into_tensor(flat, mine)
        same(flat, torch.stack(everyone).view(-1, 5))
        dist.gather(mine, outs if rank == 0 else None, dst=0)
        if rank == 0:
            for got, want in zip(outs, everyone, strict=True):
                same(got, want)
        pieces = [data(dtype, 10 + r).to(TPU) for r in range(size)]
        out = torch.empty_like(mine)
        dist.scatter(out, pieces if rank == 0 else None, src=0)
        same(out, data(dtype, 10 + rank))


def check_all_to_all() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        x = data(dtype, rank, (size * 2, 3)).to(TPU)
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        want = torch.cat(
            [data(dtype, r, (size * 2, 3))[2 * rank : 2 * rank + 2] for r in range(size)]
        )
        same(out, want)
        # Uneven: rank r sends (r + to) % 3 rows to each; the sizes are known only at run time.
        rows = [[(r + to) % 3 for to in range(size)] for r in range(size)]
        x = data(dtype, rank, (sum(rows[rank]), 3)).to(TPU)
        counts = torch.tensor(rows[rank], device=TPU)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        splits = theirs.tolist()
        assert splits == [rows[r][rank] for r in range(size)]
        out = torch.empty(sum(splits), 3, dtype=dtype, device=TPU)
        dist.all_to_all_single(out, x, splits, rows[rank])
        parts = [data(dtype, r, (sum(rows[r]), 3)).split(rows[r])[rank] for r in range(size)]
        same(out, torch.cat(parts))
        inputs = [data(dtype, rank, (1 + to, 2)).to(TPU) for to in range(size)]
        outputs = [torch.empty(1 + rank, 2, dtype=dtype, device=TPU) for _ in range(size)]
        dist.all_to_all(outputs, inputs)
        for r, got in enumerate(outputs):
            same(got, data(dtype, r, (1 + rank, 2)))


def check_uneven() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    outs = [torch.empty(r + 1, 2, device=TPU) for r in range(size)]
    dist.all_gather(outs, data(torch.float32, rank, (rank + 1, 2)).to(TPU))
    for r, got in enumerate(outs):
        same(got, data(torch.float32, r, (r + 1, 2)))
    inputs = [data(torch.float32, rank, (r + 1, 2)).to(TPU) for r in range(size)]
    out = torch.empty(rank + 1, 2, device=TPU)
    dist.reduce_scatter(out, inputs)
    same(out, sum(data(torch.float32, r, (rank + 1, 2)) for r in range(size)))


def check_views() -> None:
    """Parts of a storage, transposed tensors, and tensors without memory yet."""
    rank, size = dist.get_rank(), dist.get_world_size()
    base = torch.zeros(4, 6, device=TPU)
    base[1] = rank + 1.0
    dist.all_reduce(base[1])
    assert base.sum().item() == 6 * size * (size + 1) / 2
    x = data(torch.float32, rank, (3, 4)).to(TPU)
    t = x.t()
    dist.all_reduce(t)
    same(x, expected(torch.float32, "SUM", size, (3, 4)))
    column = base[:, 2]
    dist.broadcast(column, src=0)
    nothing = torch.empty(3, device=TPU)
    dist.all_reduce(nothing)
    flat = torch.zeros(size * 4, device=TPU)
    dist.all_gather(list(flat.chunk(size)), torch.full((4,), float(rank), device=TPU))
    same(flat, torch.arange(size).repeat_interleave(4).float())
    empty = torch.empty(0, 3, device=TPU)
    dist.all_reduce(empty)
    channels = torch.ones(2, 3, 4, 4, device=TPU).to(memory_format=torch.channels_last) * rank
    dist.all_reduce(channels)
    assert channels.is_contiguous(memory_format=torch.channels_last)
    same(channels, torch.full((2, 3, 4, 4), size * (size - 1) / 2))


def check_values_stay() -> None:
    """Whoever holds the value before an in-place collective does not see it change."""
    size = dist.get_world_size()
    for shape in ((8,), (256, 1024)):
        x = torch.ones(shape, device=TPU)
        shared = x.clone()
        y = x * 2
        dist.all_reduce(x)
        z = x + 1
        dist.all_reduce(x)
        assert shared.sum().item() == x.numel()
        assert y.sum().item() == 2 * x.numel()
        assert z.sum().item() == (size + 1) * x.numel()
        assert x.sum().item() == size * size * x.numel()
        work = dist.all_reduce(x, async_op=True)
        x2 = x * 3
        x.fill_(5)
        work.wait()
        assert x.sum().item() == 5 * x.numel()
        assert x2.sum().item() == 3 * size**3 * x.numel()


def check_messages() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        x, y = data(dtype, rank).to(TPU), torch.empty(3, 5, dtype=dtype, device=TPU)
        ops = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        same(y, data(dtype, before))
    z = torch.zeros(2, 3, device=TPU)
    if rank == 0:
        dist.send(torch.ones(3, device=TPU), 1, tag=7)
        dist.send(torch.full((3,), 2.0, device=TPU), 1, tag=8)
    elif rank == 1:
        second = dist.irecv(z[1], 0, tag=8)
        dist.recv(z[0], 0, tag=7)
        second.wait()
        same(z, torch.tensor([[1.0] * 3, [2.0] * 3]))
    if rank == 0:
        got = []
        for _ in range(size - 1):
            x = torch.zeros(1, device=TPU)
            source = dist.recv(x)
            assert x.item() == source
            got.append(source)
        assert sorted(got) == list(range(1, size))
    else:
        dist.send(torch.tensor([float(rank)], device=TPU), 0)
    dist.barrier()
    if rank == 0:  # what came from anyone counts as a message of its sender
        for source in range(1, size):
            dist.recv(x := torch.zeros(2, dtype=torch.int32, device=TPU), source)
            same(x, torch.full((2,), source, dtype=torch.int32))
    else:
        dist.send(torch.full((2,), rank, dtype=torch.int32, device=TPU), 0)
    dist.barrier()
    if rank == 0:  # while one from anyone is awaited, too
        first = dist.irecv(u := torch.zeros(3, device=TPU), tag=3)
        dist.recv(v := torch.zeros(4, dtype=torch.int64, device=TPU), 1, tag=4)
        first.wait()
        same(u, torch.ones(3))
        same(v, torch.full((4,), 5))
    elif rank == 1:
        dist.send(torch.ones(3, device=TPU), 0, tag=3)
        dist.send(torch.full((4,), 5, device=TPU), 0, tag=4)


def check_groups() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([r, r + 1]) for r in range(0, size, 2)]
    mine = pairs[rank // 2]
    x = torch.full((4,), float(rank), device=TPU)
    dist.all_reduce(x, group=mine)
    first = rank - rank % 2
    same(x, torch.full((4,), float(2 * first + 1)))
    with dist._coalescing_manager(group=mine, device=TPU, async_ops=True) as manager:
        a, b = torch.ones(3, device=TPU), torch.full((2,), 2.0, device=TPU)
        dist.all_reduce(a, group=mine)
        dist.all_reduce(b, group=mine)
    manager.wait()
    same(a, torch.full((3,), 2.0))
    same(b, torch.full((2,), 4.0))
    with dist._coalescing_manager(group=mine):
        outs = [torch.empty(2 * n, device=TPU) for n in (1, 2)]
        for out, n in zip(outs, (1, 2), strict=True):
            dist.all_gather_into_tensor(
                out, torch.full((n,), float(rank % 2), device=TPU), group=mine
            )
    same(outs[1], torch.tensor([0.0, 0.0, 1.0, 1.0]))
    for group in pairs:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def check_objects_and_barriers() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    only_tpu = dist.new_group(backend="tpu")
    for group in (None, only_tpu):
        found: list[Any] = [None] * size
        dist.all_gather_object(found, {"rank": rank, "text": "x" * rank}, group=group)
        assert [item["rank"] for item in found] == list(range(size))
        box = [{"from": rank}] if rank == 0 else [None]
        dist.broadcast_object_list(box, src=0, group=group)
        assert box == [{"from": 0}]
        dist.barrier(group=group)
        dist.monitored_barrier(group=group)
    dist.destroy_process_group(only_tpu)


def check_async() -> None:
    size = dist.get_world_size()
    x = torch.ones(1000, device=TPU)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    y = x * 2
    assert y[0].item() == 2 * size
    assert work.is_completed()
    assert work.is_success()
    future = dist.all_reduce(x, async_op=True).get_future()
    chained = future.then(lambda done: done.value()[0] / size)
    assert chained.wait()[0].item() == size
    works = [dist.all_reduce(torch.ones(8, device=TPU), async_op=True) for _ in range(20)]
    for work in works:
        work.wait()
    torch.tpu.synchronize()
    assert all(work.is_completed() for work in works)


def check_grad_modes() -> None:
    """Tensors of inference mode, and tensors that require a gradient."""
    size = dist.get_world_size()
    with torch.inference_mode():
        for dtype in (torch.float32, torch.int16):
            x = torch.full((4, 4), 2, device=TPU, dtype=dtype)
            dist.all_reduce(x, op=dist.ReduceOp.AVG)
            same(x, torch.full((4, 4), 2, dtype=dtype))
            dist.all_reduce(x[:, 1], op=dist.ReduceOp.AVG)
            out = torch.empty(4, dtype=dtype, device=TPU)
            dist.reduce_scatter_tensor(out, torch.ones(4 * size, dtype=dtype, device=TPU))
            same(out, torch.full((4,), size, dtype=dtype))
    weight = torch.ones(4, 4, device=TPU, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(weight)
        dist.broadcast(weight.t(), src=0)
    (weight * 2).sum().backward()
    assert weight.grad is not None
    same(weight.grad, torch.full((4, 4), 2.0))
    same(weight.detach(), torch.full((4, 4), float(size)))


CHECKS = [
    check_reductions,
    check_against_gloo,
    check_refusals,
    check_moves,
    check_all_to_all,
    check_uneven,
    check_views,
    check_values_stay,
    check_messages,
    check_groups,
    check_objects_and_barriers,
    check_async,
    check_grad_modes,
]


def in_mode(mode: str, check: Any) -> None:
    import torch_tpu

    with torch_tpu.mode(mode):
        check()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("mode", ["fused", "strict"])
def test_two_ranks(two: Ranks, check: Any, mode: str) -> None:
    two.run(in_mode, mode, check)


def with_copies(check: Any) -> None:
    from torch_tpu import _C

    _C._distributed_always_copy(True)
    try:
        check()
    finally:
        _C._distributed_always_copy(False)


def test_by_way_of_the_host(two: Ranks) -> None:
    """As on plugins whose memory is not host memory."""
    for check in CHECKS[1:]:
        two.run(with_copies, check)


def test_debug_eager(two: Ranks) -> None:
    for check in (check_views, check_values_stay, check_messages, check_async):
        two.run(in_mode, "debug", check)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_four_ranks(four: Ranks, check: Any) -> None:
    four.run(in_mode, "fused", check)
