"""Fused Eager with sizes that change: bounded programs, and no compilation that is not used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fuzz import Setting, check_sizes, stable_program
from torch import Tensor, nn

import torch_tpu

pytestmark = pytest.mark.usefixtures("fused_mode")


def counts() -> dict[str, int]:
    return dict(torch_tpu.stats()["fused"])


def since(before: dict[str, int]) -> dict[str, int]:
    return {name: value - before[name] for name, value in counts().items()}


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(work: Callable[[int, str], list[Tensor]], sizes: range, bounded: bool = True) -> None:
    """`work` gives the CPU's numbers for each size, the last ones by bounded programs."""
    before = counts()
    for n in sizes:
        got = [t.detach().cpu() for t in work(n, "tpu")]
        torch.testing.assert_close(got, work(n, "cpu"), rtol=2e-4, atol=2e-5)
    assert (since(before)["bounded_runs"] > 0) is bounded, static_reasons()


def static_reasons() -> set[str]:
    return {p["static_because"] for p in torch_tpu.fused.programs()}


def bounded_programs() -> list[dict[str, Any]]:
    return [p for p in torch_tpu.fused.programs() if p["bound"] is not None]


ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "product": lambda x: x @ torch.ones(8, 8, device=x.device),
    "product over it": lambda x: x.mT @ x,
    "softmax": lambda x: x.softmax(1),
    "sum": lambda x: x.sum(1),
    "mean of all": lambda x: x.mean(),
    "largest": lambda x: x.max(1).values,
    "place of the largest": lambda x: x.argmax(1),
    "running sum": lambda x: x.cumsum(1),
    "order": lambda x: x.sort(1).values,
    "two of it": lambda x: torch.cat([x, x], 1),
    "shape of it": lambda x: x.reshape(-1, 4).clone(),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_call_alone_is_of_a_family_too(name: str) -> None:
    """What is read after each op: a program for all lengths, not one for each."""
    compiles = torch_tpu.stats()["compiles"]
    for n in range(40, 160, 9):
        x = draw(n, 2, n, 8)
        torch.testing.assert_close(
            ALONE[name](x.to("tpu")).cpu(), ALONE[name](x), rtol=2e-4, atol=2e-5
        )
    if name != "order":
        assert torch_tpu.stats()["compiles"] - compiles <= 10, static_reasons()


class Block(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, t, c = x.shape
        parts = self.qkv(self.norm(x)).split(c, dim=2)
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in parts)
        scores = (q @ k.transpose(-2, -1)) * 0.35
        scores = scores.masked_fill(mask[:t, :t] == 0, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        return x + self.mlp(x)


def block_on(device: str) -> tuple[Block, Tensor]:
    torch.manual_seed(0)
    return Block().to(device), torch.ones(64, 64).tril().to(device)


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_over_lengths(batch: int) -> None:
    blocks = {device: block_on(device) for device in ("tpu", "cpu")}

    def work(n: int, device: str) -> list[Tensor]:
        block, mask = blocks[device]
        with torch.no_grad():
            return [block(draw(n, batch, n, 16).to(device), mask)[:, -1].argmax(-1)]

    check(work, range(17, 50, 3))


def test_the_number_of_programs() -> None:
    torch_tpu.fused.wait()
    before, compiles = counts(), torch_tpu.stats()["compiles"]
    w = draw(0, 8, 4).to("tpu")
    for n in range(20, 120):
        x = draw(n, n, 8).to("tpu")
        out = torch.softmax(x @ w, 0).mean(1).cumsum(0)
        torch.testing.assert_close(out.cpu(), torch.softmax(x.cpu() @ w.cpu(), 0).mean(1).cumsum(0))
    made = since(before)
    torch_tpu.fused.wait()
    # Twice the room that the third size needs, then the next before it is needed.
    assert made["bounded"] == 3
    assert made["bounded_runs"] >= 97  # a program from disk may not know its call the first time
    assert torch_tpu.stats()["compiles"] - compiles <= 2 * 3 + 2 * 4
    shown = [(p["bound"], p["sizes"]) for p in bounded_programs()[-3:]]
    assert shown == [(64, (2, 64)), (128, (2, 128)), (256, (2, 256))]


NEW_OPS = """
import copy, torch, torch_tpu
from torch import nn
torch.manual_seed(0)
layers = [nn.Embedding(31, 18), nn.LayerNorm(18), nn.Linear(18, 34), nn.Tanh(), nn.Linear(34, 18)]
layers += [nn.GELU(), nn.Linear(18, 26), nn.Sigmoid(), nn.Linear(26, 31), nn.SiLU()]
cpu = nn.Sequential(*layers, nn.Linear(31, 29), nn.Softmax(2))
tpu = copy.deepcopy(cpu).to("tpu")
with torch.no_grad():
    for n in (18, 25, 31, 40, 60):
        tokens = torch.arange(n)[None] % 31
        got = tpu(tokens.to("tpu")).sum(1).exp().argmax(-1).cpu()
        assert got == cpu(tokens).sum(1).exp().argmax(-1)
runs = [p["runs"] for p in torch_tpu.fused.programs() if p["bound"] is not None]
assert runs == [4, 0], runs  # 64; 128 is compiled ahead
torch_tpu.fused.wait()
assert torch_tpu.stats()["compiles"] <= 4, torch_tpu.stats()
"""


def test_a_model_of_new_ops(run_python: Callable[..., str], tmp_path: Path) -> None:
    """Its first size is one program, and the second begins with the bounds: nothing else."""
    run_python(NEW_OPS, TORCH_TPU_CACHE_DIR=str(tmp_path), TORCH_TPU_MODE="fused")


def test_a_cache_that_grows() -> None:
    """It stays in buffers of the bound, whoever looks at it on the way."""
    w = {device: draw(1, 8, 8).to(device) for device in ("tpu", "cpu")}

    def run(device: str) -> list[Tensor]:
        cache = draw(2, 1, 2, 5, 8).to(device)
        seen = []
        for step in range(40):
            new = (draw(step, 1, 2, 1, 8).to(device) @ w[device]).tanh()
            cache = torch.cat([cache, new], dim=2)
            scores = (new @ cache.transpose(-1, -2)).softmax(-1)
            seen.append((scores @ cache).sum().cpu())
            if step % 7 == 3:
                seen.append(cache.cpu().clone())
            if step % 11 == 5:
                cache.mul_(0.5)  # a write, outside what changes
                seen.append(cache.sum(2).cpu())
        return [*seen, cache.cpu()]

    before = counts()
    torch.testing.assert_close(run("tpu"), run("cpu"), rtol=1e-4, atol=1e-5)
    assert since(before)["bounded_runs"] > 20


def test_training_over_lengths() -> None:
    def work(n: int, device: str) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
        model = model.to(device)
        x, y = draw(n, n, 4).to(device), (torch.arange(n) % 3).to(device)
        F.cross_entropy(model(x), y).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    check(work, range(18, 27))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[-1] * 2 + 1,
        lambda x: x[:-1].exp() + 1,
        lambda x: x[1:].exp() + x[:-1],
        lambda x: (x.t() * 2).softmax(1),
        lambda x: (x @ x.t()).softmax(-1).sum(0),
        lambda x: torch.cat([x, x], 0).sort(0).values + 1,
        lambda x: (x.flip(0) + 1).argmax(0) + 1,
        lambda x: x.reshape(-1).cumsum(0) * 2,
        lambda x: x.mean(0) + x.var(0) + x.amax(0),
        lambda x: (x + torch.arange(x.shape[0], device=x.device)[:, None]).sum(0),
        lambda x: torch.ones_like(x).cumsum(0) * 2,
        lambda x: x[torch.arange(x.shape[0], device=x.device).flip(0)] + 1,
        lambda x: torch.where(x > 0, x, torch.zeros_like(x)).sum() / x.shape[0],
        lambda x: (x + 1).view(x.shape[0], 2, 3).transpose(0, 1).reshape(2, -1).sum(1),
        lambda x: (x[None].expand(2, -1, -1) * 2).sum((0, 1)) + 1,
        lambda x: (x.unfold(0, 2, 1) + 1).sum(),
        lambda x: F.pad(x, (0, 0, 1, 2)).mul(2).sum(0),
        lambda x: x.clone().mul_(2).add_(1)[::2].sum(0),
        lambda x: (x.topk(2, 0).values + 1, x.std(0) * 2)[0],
        lambda x: x.new_zeros(x.shape).copy_(x * 2).add_(x),
        lambda x: (x.sum(0) * x.numel()) + len(x),
        lambda x: F.conv1d(x.t()[None], torch.ones(2, 6, 3, device=x.device), padding=1).relu(),
        lambda x: x.masked_fill(x > 0.5, 9).amin(0) + 1,
        lambda x: (x + 1).repeat(2, 1).sum(0),
        lambda x: (torch.tril(x @ x.t()) + 1).sum(1),
        lambda x: F.one_hot((x[:, 0] > 0).long(), 3).sum(0) + 1,
    ],
)
def test_ops_and_views(f: Callable[[Tensor], Tensor]) -> None:
    """Right in any case; which of them have bounded programs is another question."""
    for n in (4, 5, 7, 8, 11, 16, 17, 23, 30, 40, 9, 2, 1):
        x = draw(n, n, 6)
        try:
            want = f(x)
        except RuntimeError:
            continue
        got = f(x.to("tpu"))
        torch.testing.assert_close(got.cpu(), want, rtol=2e-4, atol=2e-5, equal_nan=True)


def test_writes_through_views() -> None:
    def work(n: int, device: str) -> list[Tensor]:
        x = draw(n, n, 4).to(device)
        y = x * 2
        y[0] = 7
        y[:, 1].mul_(3)
        y[-1].add_(1)
        z = y.view(-1)[1:]
        z.add_(1)
        return [y, z.sum(), x]

    check(work, range(5, 13), bounded=False)


def test_random_numbers_are_those_of_strict() -> None:
    def run(n: int) -> Tensor:
        torch.manual_seed(n)
        return (F.dropout(draw(n, n, 4).to("tpu") * 2, 0.5) + 1).cpu()

    for n in range(5, 14):
        got = run(n)
        with torch_tpu.mode("strict"):
            torch.testing.assert_close(got, run(n))


def test_nothing_is_compiled_that_is_not_used() -> None:
    """Bernoulli has no bounded program; lengths that come twice get none of their own."""
    torch_tpu.fused.wait()
    known = {p["name"] for p in torch_tpu.fused.programs()}
    for _ in range(2):
        for n in range(40, 60):
            (torch.bernoulli(torch.ones(n, 3, device="tpu")) * 2 + 1).sum().item()
    torch_tpu.fused.wait()
    met = [p for p in torch_tpu.fused.programs() if p["name"] not in known]
    # The first two sizes are not known to be two of many.
    assert len(met) == 20
    assert sum(p["state"] == "ready" for p in met) == 0
    assert any("bernoulli" in p["static_because"] for p in met)


def dropout_step(n: int, mode: str) -> list[Tensor]:
    torch.manual_seed(n)
    with torch_tpu.mode(mode):
        x = draw(n, 2, n, 8).to("tpu").requires_grad_()
        q = F.dropout(x, 0.3).view(2, n, 2, 4).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q, dropout_p=0.2, is_causal=True)
        loss = F.dropout(y, 0.5).square().sum()
        loss.backward()
        assert x.grad is not None
        return [y.detach().cpu(), loss.detach().cpu(), x.grad.cpu()]


def test_dropout_draws_what_it_would_without_a_bound() -> None:
    before = counts()
    for n in (20, 23, 29, 31, 40, 61, 22, 17):
        got, expected = dropout_step(n, "fused"), dropout_step(n, "strict")
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert since(before)["bounded_runs"] > 0, static_reasons()


LAST_BATCH = """
import torch, torch_tpu
from torch import nn
from torch.nn import functional as F

def start(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 19), nn.Tanh(), nn.LayerNorm(19), nn.Linear(19, 3)).to(device)
    return net, torch.optim.Adam(net.parameters(), lr=1e-2)

def step(net, optimizer, x):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), x[:, :3].argmax(1))
    loss.backward()
    optimizer.step()
    return loss.item()

mine, theirs = start("tpu"), start("cpu")
for n in [29, 29, 29, 11] * 2 + [29, 20]:
    x = torch.randn(n, 6)
    before = torch_tpu.stats()["compiles"]
    assert abs(step(*mine, x.to("tpu")) - step(*theirs, x)) < 1e-4
    torch_tpu.fused.wait()
    print(torch_tpu.stats()["compiles"] - before)
"""


def test_a_smaller_last_batch_runs_in_one_program(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    """The first change of the batch: a program for all sizes, not one per op."""
    compiles = run_python(LAST_BATCH, TORCH_TPU_CACHE_DIR=str(tmp_path)).split()
    assert compiles[3:] == ["2"] + ["0"] * 6, compiles  # soon, and well in the background


def test_sizes_that_come_again_and_again() -> None:
    """A handful of sizes, not in step with each other, get programs of their own in the end."""
    torch_tpu.fused.wait()
    for _ in range(7):
        for a, b, c in ((3, 5, 11), (9, 2, 3), (4, 7, 5)):
            x, y, z = (torch.ones(size, 3, device="tpu") for size in (a, b, c))
            assert (x.sum() * 2 + y.sum() + z.sum()).item() == a * 6 + b * 3 + c * 3
    torch_tpu.fused.wait()
    last = torch_tpu.fused.programs()[-3:]
    assert [p["state"] for p in last] == ["ready"] * 3


def test_an_index_out_of_range() -> None:
    table = torch.ones(10, 3, device="tpu")

    def look_up(index: torch.Tensor) -> float:  # an assert would hold what is between
        return (F.embedding(index.to("tpu"), table) * 2).sum().item()

    for n in range(5, 12):
        assert look_up(torch.arange(n) % 10) == n * 6
    before = counts()
    for n in range(12, 15):
        bad = torch.full((n,), 3)
        bad[n - 1] = 10
        with pytest.raises(IndexError, match="index out of range in self"):
            look_up(bad)
    assert since(before)["bounded_runs"] == 3


EXPLAIN = """
import torch, torch_tpu
for n in range(33, 38):
    (torch.ones(n, 2, device="tpu").exp() * 3).sum().item()
print(torch_tpu.explain())
"""


def test_explain_names_the_bound(run_python: Callable[..., str]) -> None:
    assert "for sizes from 2 to 128, in buffers for 128" in run_python(EXPLAIN)


@pytest.mark.usefixtures("steady_memory")
def test_the_memory_of_a_padded_value() -> None:
    for n in range(40, 45):
        value = torch.ones(n, 256, device="tpu") * 2 + 1
        value.sum().item()
    assert value.untyped_storage().nbytes() == 44 * 1024
    base = torch.tpu.memory_allocated()
    clone = value.cpu()
    assert bool((clone == 3).all())
    del value
    assert torch.tpu.memory_allocated() < base


DECISIONS = """
import torch, torch_tpu
for n in [5, 9, 6, 7, 30, 40, 8, 31, 100, 6, 5]:
    x = torch.ones(n, 4, device="tpu")
    (x.exp() @ x.t()).softmax(-1).sum().item()
torch_tpu.fused.wait()
print([(p["name"], p["state"], p["bound"], p["runs"]) for p in torch_tpu.fused.programs()])
"""


def test_every_process_decides_alike(run_python: Callable[..., str]) -> None:
    first = run_python(DECISIONS, TORCH_TPU_CACHE_DIR="off")
    assert "bounded_" in first
    assert run_python(DECISIONS, TORCH_TPU_CACHE_DIR="off") == first


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_of_many_sizes(seed: int) -> None:
    failure, _ = check_sizes(stable_program(1000 + seed), Setting("fused", "second"))
    assert failure is None


def test_tokens_shifted_by_one() -> None:
    """As decoders do it: a part of a tensor is written whose length varies."""

    def work(n: int, device: str) -> list[Tensor]:
        ids = (draw(n, 2, n) * 100).long().to(device)
        shifted = ids.new_zeros(ids.shape)
        shifted[:, 1:] = ids[:, :-1].clone()
        shifted[:, 0] = 7
        shifted.masked_fill_(shifted == -100, 3)
        tail = shifted.clone()
        tail[:, n - 5 :] = -1
        return [shifted * 2, tail, shifted.cumsum(1)]

    check(work, range(17, 50, 3))


def test_parts_written_where_a_position_says() -> None:
    def work(n: int, device: str) -> list[Tensor]:
        cache = torch.zeros(2, 64, 4, device=device)
        new = draw(n, 2, n, 4).to(device).exp()
        for start in (64 - n, 1, 63 - n):
            cache[:, start : start + n] += new
        return [cache.sum(1), cache]

    check(work, range(17, 32, 2))


def test_gradients_of_a_part_of_a_table() -> None:
    """Positions of a model: as many rows as there are tokens; the others have no gradient."""

    def work(n: int, device: str) -> list[Tensor]:
        tables = [draw(1, length, 4).to(device).requires_grad_() for length in (64, 32, 90)]
        x = draw(n, 2, n, 4).to(device)
        parts = tables[0][:n], tables[1][:n], tables[2][3 : 3 + n], tables[2][20 : 20 + n]
        if n < 30:
            parts = (*parts, tables[1][2 : 2 + n])
        sum((x * part).exp().sum() for part in parts).backward()
        return [table.grad for table in tables if table.grad is not None]

    check(work, range(17, 32))


def test_gradients_of_slices() -> None:
    """Rotary embeddings: halves of a head, and the positions but the first and the last."""

    def work(n: int, device: str) -> list[Tensor]:
        x = draw(n, 2, n, 8).to(device).requires_grad_()
        turned = torch.cat((-x[..., 4:], x[..., :4]), -1) * x.detach().cos()
        loss = turned[:, 1:].square().sum() + turned[:, :-1].exp().sum() + turned[0].sum()
        loss.backward()
        assert x.grad is not None
        return [loss.detach(), x.grad]

    check(work, range(17, 50, 3))


PAIRS = [(40, 3), (61, 7), (33, 12), (50, 2), (18, 16), (64, 5), (22, 9), (47, 11)]


def check_pairs(work: Callable[[int, int, str], list[Tensor]], bounded: bool = True) -> None:
    """As check, for two sizes that vary on their own."""
    before = counts()
    for n, m in PAIRS:
        got = [t.detach().cpu() for t in work(n, m, "tpu")]
        torch.testing.assert_close(got, work(n, m, "cpu"), rtol=2e-4, atol=2e-5)
    assert (since(before)["bounded_runs"] > 2) is bounded, static_reasons()


def train(n: int, m: int, device: str) -> list[Tensor]:
    """Attention over `m` sequences of `n` tokens, and the gradients of all weights."""
    torch.manual_seed(0)
    table = nn.Embedding(31, 16).to(device)
    block = Block().to(device)
    head = nn.Linear(16, 31).to(device)
    ids = (draw(n, m, n).abs() * 10).long().clamp(max=30).to(device)
    mask = torch.ones(64, 64).tril().to(device)
    logits = head(block(table(ids), mask))
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, 31), ids[:, 1:].reshape(-1))
    loss.backward()
    everything = [*table.parameters(), *block.parameters(), *head.parameters()]
    return [loss, *(p.grad for p in everything if p.grad is not None)]


def test_two_sizes() -> None:
    torch_tpu.fused.wait()
    known = {p["name"] for p in bounded_programs()}
    check_pairs(train)
    made = [p for p in bounded_programs() if p["name"] not in known]
    assert made
    assert all(len(p["bound"]) == 2 and max(p["bound"]) <= 128 for p in made)
    (low, high), _ = made[0]["sizes"]
    assert low < high


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.transpose(0, 1).reshape(-1, 6).cumsum(0) * 2,
        lambda x: x.reshape(-1, 6).sort(0).values + 1,
        lambda x: torch.cat([x, x[:, :1]], 1).reshape(-1, 6).softmax(0),
        lambda x: x.flatten(0, 1).view(x.shape).amax(1) + x[:, -1] + x[-1].sum(0),
        lambda x: (x @ x.transpose(1, 2)).softmax(-1).sum((0, 1))[1:] * 2,
        lambda x: x.permute(2, 1, 0).reshape(6, -1).mean(1) + x.sum((0, 1)) * x.shape[0],
        lambda x: x[1:, 2:].exp().flip(1) + x[:-1, :-2],
        lambda x: (x.view(-1)[: x.shape[0]] * 2).sum() + x.var(1).sum(),
        lambda x: x.reshape(x.shape[1], -1).cumsum(0) + 1,
    ],
)
def test_ops_and_views_of_two_sizes(f: Callable[[Tensor], Tensor]) -> None:
    """Right in any case; which of them have bounded programs is another question."""
    for n, m in [*PAIRS, (2, 2), (1, 5), (30, 1)]:
        x = draw(n, m, n, 6)
        want = f(x)
        got = f(x.to("tpu")).cpu()
        torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4, equal_nan=True)


def test_a_batch_that_changes_once() -> None:
    """Lengths first, then the batch too: a program for both serves what follows."""
    w = {device: draw(1, 6, 6).to(device) for device in ("tpu", "cpu")}

    def work(n: int, m: int, device: str) -> list[Tensor]:
        x = draw(n, m, n, 6).to(device)
        return [(x @ w[device]).softmax(1).sum((0, 1)), (x * 2).exp()]

    for n, m in [(17, 4), (20, 4), (25, 4), (31, 4), (30, 7), (19, 9), (23, 4), (29, 8)]:
        got = [t.cpu() for t in work(n, m, "tpu")]
        torch.testing.assert_close(got, work(n, m, "cpu"), rtol=2e-4, atol=2e-5)
    bounds = [p["bound"] for p in bounded_programs()]
    assert 32 in bounds
    assert (16, 32) in bounds or (32, 16) in bounds


CUT = """
import torch, torch_tpu
from torch import nn
torch_tpu.fused.set_limits(min_nodes=4, max_nodes=16)
cpu = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 8))
tpu = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 8))
tpu.load_state_dict(cpu.state_dict())
tpu = tpu.to("tpu")

def work(net, x):
    b, n, c = x.shape
    for i in range(6):
        rows = net(x.reshape(b * n, c))
        q = rows.view(b, n, 2, 4).transpose(1, 2)
        y = (q @ q.transpose(-1, -2)).softmax(-1) @ q
        x = x + y.transpose(1, 2).reshape(b * n, c).view(b, n, c).sin()
    loss = x.square().mean()
    loss.backward()
    return loss

for n, b in {pairs}:
    x = torch.randn(b, n, 8)
    for net in (cpu, tpu):
        net.zero_grad()
    torch.testing.assert_close(work(tpu, x.to("tpu")).cpu(), work(cpu, x), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(tpu.parameters(), cpu.parameters()):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-4)
programs = torch_tpu.fused.programs()
print(sum(p["runs"] for p in programs if p["bound"] is not None))
print({p["static_because"] for p in programs} - {""})
"""


@pytest.mark.parametrize("both", [False, True])
def test_merged_dimensions_cross_a_cut(run_python: Callable[..., str], both: bool) -> None:
    """What a piece merged, the next one splits again."""
    pairs = PAIRS if both else [(n, 4) for n, _ in PAIRS]
    runs, why = run_python(CUT.replace("{pairs}", str(pairs))).splitlines()[-2:]
    assert int(runs) > 20, why
    assert why == "set()"


def test_a_square_of_the_size_that_varies() -> None:
    """As vision transformers: a token beside the patches of images of many sizes."""
    weight = {device: draw(3, 8, 3, 4, 4).to(device) for device in ("tpu", "cpu")}

    def work(n: int, device: str) -> list[Tensor]:
        image = draw(n, 2, 3, 4 * n, 4 * n).to(device)
        patches = F.conv2d(image, weight[device], stride=4).flatten(2).transpose(1, 2)
        tokens = torch.cat([patches.new_ones(2, 1, 8), patches], 1)
        scores = F.scaled_dot_product_attention(tokens, tokens, tokens)
        return [scores[:, 0], scores.cumsum(1)[:, -1], tokens[:, 1:].sum(1)]

    check(work, range(3, 13))


def test_views_that_go_on_in_the_next_row() -> None:
    """A program knows where a view begins along each dimension, not that it crosses one."""

    def work(n: int, device: str) -> list[Tensor]:
        x = draw(n, n, 8).to(device) * 2
        flat = x.view(-1)
        read = [flat[start : start + 6] * 3 + x.sum() for start in (5, 13, 22)]
        h = draw(n, 2, n, 4).to(device) + 1
        rows = h.view(-1, 4)[n - 2 : n + 2].exp() + h.mean()
        flat[13:19].add_(1)
        flat[37:43] = 7
        return [*read, rows, x]

    for n in range(17, 32):
        got = [t.cpu() for t in work(n, "tpu")]
        torch.testing.assert_close(got, work(n, "cpu"), rtol=2e-4, atol=2e-5)


def test_strides_alone_are_no_sizes() -> None:
    """A view and its transpose have the same sizes: no program may be made for strides between."""

    def work(seed: int, device: str) -> list[Tensor]:
        a = draw(seed, 2, 2, 4).to(device)[..., ::2]
        b = draw(seed + 1, 2, 2, 4).to(device)[..., ::2]
        out = []
        for x, y in ((a, b), (a, b.mT), (a.mT, b), (a.mT, b.mT)):
            out += [(x * y.mT).sum(-1).cpu(), x.contiguous().cpu()]
        return out

    for seed in range(6):
        torch.testing.assert_close(work(seed, "tpu"), work(seed, "cpu"))
