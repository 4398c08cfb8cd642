"""What test_xla.py checks, in a process that has 8 devices: ranks are threads with a device each,
and collectives are programs over these devices. Here: what comes out of each of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import torch
from distributed.test_collectives import ALL, OPS, data, expected, same
from distributed.thread_ranks import Rank, c10d, run, transports

import torch_tpu


def _defined(dtype: torch.dtype, op: str) -> bool:
    if op in ("BAND", "BOR", "BXOR"):
        return not (dtype.is_floating_point or dtype.is_complex)
    if op in ("MIN", "MAX"):
        return not dtype.is_complex
    return not (op == "AVG" and dtype == torch.bool)


def _all_reductions(size: int, dtypes: Sequence[torch.dtype]) -> None:
    torch_tpu.distributed.clear_flight()

    def every(rank: Rank) -> None:
        for dtype in dtypes:
            for op in OPS:
                if not _defined(dtype, op):
                    continue
                x = data(dtype, rank.rank).to(rank.device)
                rank.all_reduce(x, op).wait()
                same(x, expected(dtype, op, size))

    run(size, every)
    assert transports() == {"xla"}


def check_all_reduce_2() -> None:
    _all_reductions(2, ALL)


def check_all_reduce_4() -> None:
    _all_reductions(4, ALL)


def check_all_reduce_8() -> None:
    _all_reductions(8, [torch.float32, torch.int32, torch.int64, torch.bool, torch.complex64])


def check_reduce_scatter() -> None:
    """The lists and the tensor, every dtype; sizes that fit dimension 0 and others."""

    def every(rank: Rank) -> None:
        n = rank.size
        for dtype in ALL:
            for op in OPS:
                if not _defined(dtype, op):
                    continue
                whole = expected(dtype, op, n, (n, 2, 3))
                x = data(dtype, rank.rank, (n, 2, 3)).to(rank.device)
                out = torch.empty(1, 2, 3, dtype=dtype, device=rank.device)
                rank.reduce_scatter_tensor(out, x, op).wait()
                same(out, whole[rank.rank : rank.rank + 1])
            out = torch.empty(2, 3, dtype=dtype, device=rank.device)
            rank.reduce_scatter_tensor(out, x, "SUM").wait()
            same(out, expected(dtype, "SUM", n, (n, 2, 3))[rank.rank])
            rank.reduce_scatter(out, list(x.unbind(0)), "PRODUCT").wait()
            same(out, expected(dtype, "PRODUCT", n, (n, 2, 3))[rank.rank])

    torch_tpu.distributed.clear_flight()
    run(4, every)
    assert transports() == {"xla"}


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(found: torch.Tensor, want: torch.Tensor) -> None:
    found = found.cpu()
    assert (found.dtype, found.shape) == (want.dtype, want.shape)
    if want.dtype.is_complex:
        found, want = torch.view_as_real(found), torch.view_as_real(want)
    bits = _BITS[want.element_size()]
    assert torch.equal(found.contiguous().view(bits), want.contiguous().view(bits)), found


def _bytes(dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Any bits but those of NaNs, which arithmetic may make quiet: -0.0 and tiny numbers too."""
    if dtype == torch.bool:
        return data(dtype, rank, (4, 6))
    generator = torch.Generator().manual_seed(rank)
    raw = torch.randint(0, 256, (4, 6, dtype.itemsize), generator=generator).to(torch.uint8)
    if dtype.is_floating_point or dtype.is_complex:
        real = {torch.complex64: torch.float32}.get(dtype, dtype)
        numbers = raw.view(real)
        raw.view(4, 6, -1, real.itemsize)[numbers.double().isnan()] = 0
        numbers[0, 0] = -0.0
        numbers[0, 1] = torch.finfo(real).tiny / 4
    return raw.view(dtype).squeeze(-1)


def _moves(size: int) -> None:
    def every(rank: Rank) -> None:
        n, me, device = rank.size, rank.rank, rank.device
        for dtype in ALL:
            parts = [_bytes(dtype, r) for r in range(n)]
            for root in range(n):
                x = parts[me].to(device)
                rank.broadcast(x, root).wait()
                same_bits(x, parts[root])
            x = parts[me].to(device)
            out = [torch.empty_like(x) for _ in range(n)]
            rank.all_gather(out, x).wait()
            for found, want in zip(out, parts, strict=True):
                same_bits(found, want)
            for shape in ((4 * n, 6), (n, 24), (n * 24,)):
                flat = torch.empty(shape, dtype=dtype, device=device)
                rank.all_gather_into(flat, x).wait()
                same_bits(flat, torch.cat(parts).reshape(shape))
            wide = [torch.cat([p.flatten()] * n)[: 3 * n].reshape(n, 3) for p in parts]
            out_one = torch.empty(n, 3, dtype=dtype, device=device)
            rank.all_to_all(out_one, wide[me].to(device)).wait()
            same_bits(out_one, torch.stack([w[me] for w in wide]))

    torch_tpu.distributed.clear_flight()
    run(size, every)
    assert transports() == {"xla"}


def check_moves_2() -> None:
    _moves(2)


def check_moves_8() -> None:
    _moves(8)


def check_reduce_and_barrier() -> None:
    def every(rank: Rank) -> float:
        x = torch.full((3,), float(rank.rank), device=rank.device)
        rank.reduce(x, 2).wait()
        assert x.cpu().tolist() == ([6.0] * 3 if rank.rank == 2 else [float(rank.rank)] * 3)
        time.sleep(0.1 * rank.rank)
        rank.barrier()
        return time.monotonic()

    times = run(4, every)
    assert max(times) - min(times) < 0.25


def check_what_goes_over_the_host() -> None:
    """Uneven sizes, gather, scatter and messages: as before, between calls that XLA takes."""

    def every(rank: Rank) -> None:
        n, me, device = rank.size, rank.rank, rank.device
        x = torch.full((2,), me + 1.0, device=device)
        rank.all_reduce(x)
        ins = [(me + j) % 3 for j in range(n)]  # is symmetric, so it is what comes, too
        sent = torch.full((sum(ins),), float(me), device=device)
        got = torch.empty(sum(ins), device=device)
        rank.all_to_all(got, sent, (ins, ins)).wait()
        assert got.cpu().tolist() == [float(j) for j in range(n) for _ in range(ins[j])]
        outs = [torch.empty(j + 1, device=device) for j in range(n)]
        rank.all_gather(outs, torch.full((me + 1,), x[0].item(), device=device)).wait()
        assert [o.cpu().tolist() for o in outs] == [[10.0] * (j + 1) for j in range(n)]
        empty = torch.empty(0, device=device)
        rank.all_reduce(empty).wait()
        options = c10d.GatherOptions()
        options.rootRank = 1
        gathered = [[torch.empty_like(x) for _ in range(n)]] if me == 1 else []
        rank.backend.gather(gathered, [x * me], options).wait()
        if me == 1:
            assert [g[0].item() for g in gathered[0]] == [0.0, 10.0, 20.0, 30.0]
        if me == 0:
            rank.backend.send([x], 3, 7).wait()
        if me == 3:
            y = torch.empty_like(x)
            rank.backend.recv([y], 0, 7).wait()
            assert y.cpu().tolist() == [10.0, 10.0]
        rank.all_reduce(x).wait()
        assert x.cpu().tolist() == [40.0, 40.0]

    torch_tpu.distributed.clear_flight()
    run(4, every)
    by_op = {(c["op"], c["transport"]) for c in torch_tpu.distributed.flight()}
    assert by_op >= {("all_reduce", "xla"), ("all_to_all_single", "host"), ("gather", "host")}


def check_what_the_compiler_does_not_take() -> None:
    """Then it goes over the host, on all ranks alike."""

    def every(rank: Rank) -> None:
        n, me, device = rank.size, rank.rank, rank.device
        x = torch.full((2, 3), me + 1.0, device=device)
        rank.all_reduce(x)
        x = x / 10
        rank.broadcast(x, 3)
        rank.reduce(x, 1)
        assert x.cpu()[0, 0].item() == (n if me == 1 else 1)
        out = torch.empty(n, 2, device=device)
        rank.all_gather_into(out, torch.full((2,), float(me), device=device))
        rank.all_to_all(torch.empty_like(out), out)
        mine = torch.empty(2, device=device)
        rank.reduce_scatter_tensor(mine, out)
        same(mine, torch.full((2,), float(n * me)))
        rank.barrier()

    torch_tpu._C._distributed_refuse_programs(True)
    torch_tpu.distributed.clear_flight()
    try:
        run(4, every)
        assert transports() == {"host"}
    finally:
        torch_tpu._C._distributed_refuse_programs(False)
    torch_tpu.distributed.clear_flight()
    run(4, every)
    assert transports() == {"xla"}


def check_views() -> None:
    """What is read or written is a part of something, transposed, expanded or not there yet."""

    def every(rank: Rank) -> None:
        n, me, device = rank.size, rank.rank, rank.device
        base = torch.arange(24.0).reshape(4, 6) * (me + 1)
        total = torch.arange(24.0).reshape(4, 6) * sum(range(1, n + 1))
        for view in (
            lambda t: t[1:3],
            lambda t: t[:, ::2],
            lambda t: t.t(),
            lambda t: t.view(-1),
            lambda t: t.view(-1)[5:11],
        ):
            x = base.to(device)
            rank.all_reduce(view(x)).wait()
            want = base.clone()
            view(want).copy_(view(total))
            same(x, want)
        # As FSDP does: a rank's input is its part of the output.
        out = torch.zeros(n * 3, device=device)
        mine = out[me * 3 : me * 3 + 3]
        mine.fill_(me)
        rank.all_gather_into(out, mine).wait()
        same(out, torch.arange(float(n)).repeat_interleave(3))
        uninitialised = torch.empty(5, device=device)
        rank.broadcast(uninitialised if me else torch.ones(5, device=device), 0).wait()
        if me:
            same(uninitialised, torch.ones(5))
        lists = list(torch.zeros(n, 2, device=device).unbind(0))
        rank.all_gather(lists, torch.full((2,), float(me), device=device)).wait()
        same(torch.stack(lists), torch.arange(float(n)).reshape(n, 1).expand(n, 2))

    run(4, every)


def check_values_before_and_after() -> None:
    """A collective reads the values of now and gives new ones; ops around it are fused."""

    def every(rank: Rank) -> None:
        n, me, device = rank.size, rank.rank, rank.device
        x = torch.ones(300, 300, device=device) * (me + 1)
        kept = x.detach().clone()
        product = x * 2
        work = rank.all_reduce(x)
        x.mul_(0.5).add_(1)  # of the sum, before anybody has waited
        work.wait()
        same(x, torch.full((300, 300), n * (n + 1) / 4 + 1))
        same(kept, torch.full((300, 300), me + 1.0))
        same(product, torch.full((300, 300), 2.0 * (me + 1)))
        y = torch.ones(64, device=device)
        alias = y
        for _ in range(5):
            y = y + me
            rank.all_reduce(y, "AVG")
        same(y, torch.full((64,), 1 + 5 * (n - 1) / 2))
        same(alias, torch.ones(64))

    run(4, every)


def check_many_under_way() -> None:
    def every(rank: Rank) -> None:
        xs = [torch.full((17 + i,), float(rank.rank + i), device=rank.device) for i in range(20)]
        works = [rank.all_reduce(x) for x in xs]
        time.sleep(0.02 * rank.rank)
        for i in reversed(range(20)):
            works[i].wait(timedelta(seconds=20))
            assert works[i].is_completed()
            same(xs[i], torch.full((17 + i,), 28.0 + 8 * i))

    run(8, every)
