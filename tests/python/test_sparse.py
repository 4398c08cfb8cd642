"""Sparse tensors on the device: each call against the same one on the CPU, with none run there."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_tpu

Make = Callable[[str], torch.Tensor]

INDICES = [[0, 1, 1, 0, 3, 0], [2, 0, 2, 2, 1, 0]]


@pytest.fixture(autouse=True)
def checked() -> Iterator[None]:
    with torch.sparse.check_sparse_tensor_invariants():
        yield


def coo(device: str, coalesced: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.tensor([1.0, 2.0, -3.0, 4.0, 0.5, 0.25]).to(dtype)
    made = torch.sparse_coo_tensor(torch.tensor(INDICES), values, (4, 3), device=device)
    return made.coalesce() if coalesced else made


def hybrid(device: str) -> torch.Tensor:
    values = torch.arange(12.0).view(6, 2).sub(3)
    return torch.sparse_coo_tensor(torch.tensor(INDICES), values, (4, 3, 2), device=device)


def csr(device: str) -> torch.Tensor:
    return coo(device, coalesced=True).to_sparse_csr()


def dense(device: str, *sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(3)).to(device)


def parts(t: Any) -> list[torch.Tensor]:
    """The dense tensors that a result is made of, on the CPU; an uncoalesced one is coalesced."""
    if not isinstance(t, torch.Tensor):
        return [torch.as_tensor(t)]
    t = t.detach()
    if t.layout is torch.sparse_coo:
        t = t.coalesce()
        return [t.indices().cpu(), t.values().cpu()]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices().cpu(), t.col_indices().cpu(), t.values().cpu()]
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [t.ccol_indices().cpu(), t.row_indices().cpu(), t.values().cpu()]
    return [t.cpu()]


def same(run: Callable[[str], Any]) -> None:
    """`run` on the device gives what it gives on the CPU, and no op of it ran there."""
    want = run("cpu")
    before = dict(torch_tpu.coverage())
    got = run("tpu")
    assert dict(torch_tpu.coverage()) == before
    if isinstance(want, torch.Tensor):
        assert got.device.type == "tpu"
        assert (got.layout, got.shape, got.dtype) == (want.layout, want.shape, want.dtype)
    for mine, theirs in zip(parts(got), parts(want), strict=True):
        torch.testing.assert_close(mine, theirs)


OPS: dict[str, Callable[[str], Any]] = {
    "coalesce": lambda d: coo(d).coalesce(),
    "to_dense": lambda d: coo(d).to_dense(),
    "hybrid": lambda d: hybrid(d).coalesce(),
    "hybrid to_dense": lambda d: hybrid(d).to_dense(),
    "bool": lambda d: coo(d, dtype=torch.bool).coalesce(),
    "int": lambda d: coo(d, dtype=torch.int64).to_dense(),
    "bfloat16": lambda d: coo(d, dtype=torch.bfloat16).coalesce(),
    "from dense": lambda d: dense(d, 3, 4).relu().to_sparse(),
    "from dense, hybrid": lambda d: dense(d, 3, 4).relu().to_sparse(1),
    "add": lambda d: coo(d) + coo(d).mul(2),
    "add dense": lambda d: dense(d, 4, 3) + coo(d),
    "sub": lambda d: coo(d) - coo(d, coalesced=True).neg(),
    "mul": lambda d: coo(d) * coo(d),
    "mul coalesced": lambda d: coo(d, True) * coo(d, True),
    "mul dense": lambda d: coo(d) * dense(d, 4, 3),
    "mul row": lambda d: coo(d, True) * dense(d, 3),
    "div": lambda d: coo(d) / 3,
    "pow": lambda d: coo(d) ** 2,
    "sin": lambda d: coo(d).sin(),
    "sqrt": lambda d: coo(d).abs().sqrt(),
    "sum": lambda d: coo(d).sum(),
    "sum 0": lambda d: torch.sparse.sum(coo(d), 0),
    "sum hybrid": lambda d: torch.sparse.sum(hybrid(d), (0, 2)),
    "norm": lambda d: coo(d).norm(),
    "mm": lambda d: coo(d) @ dense(d, 3, 5),
    "dense mm": lambda d: dense(d, 5, 4) @ coo(d),
    "mv": lambda d: coo(d) @ dense(d, 3),
    "addmm": lambda d: torch.sparse.addmm(dense(d, 4, 5), coo(d), dense(d, 3, 5), beta=2, alpha=3),
    "sparse mm": lambda d: torch.sparse.mm(coo(d), coo(d).t()),
    "bmm": lambda d: torch.bmm(torch.stack([coo(d), coo(d).mul(2)]), dense(d, 2, 3, 5)),
    "hspmm": lambda d: torch.hspmm(coo(d), dense(d, 3, 5)),
    "sspaddmm": lambda d: torch.sspaddmm(coo(d), coo(d), dense(d, 3, 3)),
    "softmax 0": lambda d: torch.sparse.softmax(coo(d), 0),
    "softmax 1": lambda d: torch.sparse.softmax(coo(d), 1),
    "softmax hybrid": lambda d: torch.sparse.softmax(hybrid(d), 2),
    "log_softmax": lambda d: torch.sparse.log_softmax(hybrid(d), 1),
    "transpose": lambda d: coo(d).t(),
    "cat": lambda d: torch.cat([coo(d), coo(d).mul(2)], 1),
    "narrow": lambda d: coo(d).narrow_copy(0, 1, 3),
    "index_select": lambda d: coo(d).index_select(1, torch.tensor([2, 0, 2], device=d)),
    "select": lambda d: coo(d)[1],
    "mask": lambda d: dense(d, 4, 3).sparse_mask(coo(d, True)),
    "mask of sparse": lambda d: coo(d).sparse_mask(coo(d, True).mul(0)),
    "zeros": lambda d: torch.zeros(2, 3, layout=torch.sparse_coo, device=d),
    "clone": lambda d: coo(d).clone().zero_(),
    "moved": lambda d: coo("cpu").to(d).to("cpu").to(d),
    "to dtype": lambda d: coo(d).to(torch.float64),
    "csr": csr,
    "csc": lambda d: coo(d).to_sparse_csc(),
    "csr to csc": lambda d: csr(d).to_sparse_csc(),
    "csr to coo": lambda d: csr(d).to_sparse(),
    "csr to_dense": lambda d: csr(d).to_dense(),
    "dense to csr": lambda d: dense(d, 3, 4).relu().to_sparse_csr(),
    "dense to bsr": lambda d: dense(d, 4, 4).relu().to_sparse_bsr((2, 2)),
    "bsr to_dense": lambda d: dense(d, 4, 4).to_sparse_bsr((2, 2)).to_dense(),
    "csr sin": lambda d: csr(d).sin(),
    "csr scale": lambda d: csr(d) * 3,
    "csr moved": lambda d: csr("cpu").to(d).to("cpu").to(d),
    "csr row": lambda d: csr(d)[1],
    "csr transposed": lambda d: csr(d).t(),
    "csr add": lambda d: csr(d) + csr(d).mul(2),
    "csr add dense": lambda d: csr(d).add(dense(d, 4, 3), alpha=2),
    "csr mul": lambda d: csr(d) * csr(d),
    "csr mm": lambda d: csr(d) @ dense(d, 3, 5),
    "csr addmm": lambda d: torch.addmm(dense(d, 5), csr(d), dense(d, 3, 5), beta=2, alpha=3),
    "csr mm csr": lambda d: csr(d) @ csr(d).t().to_sparse_csr(),
    "csc mm": lambda d: coo(d).to_sparse_csc() @ dense(d, 3, 5),
    "dense mm csr": lambda d: dense(d, 5, 4) @ csr(d),
    "csr mv": lambda d: csr(d) @ dense(d, 3),
    "csr addmv": lambda d: torch.addmv(dense(d, 4), csr(d), dense(d, 3), beta=2, out=dense(d, 4)),
    "csr sum 0": lambda d: torch._sparse_csr_sum(csr(d), 0, keepdim=True),
    "csr sum 1": lambda d: torch._sparse_csr_sum(csr(d), 1, keepdim=True),
    "csr prod": lambda d: torch._sparse_csr_prod(csr(d), (0, 1), keepdim=True),
    "csr to bsr": lambda d: csr(d).to_sparse_bsr((2, 3)),
    "csc to bsc": lambda d: coo(d).to_sparse_csc().to_sparse_bsc((2, 3)),
    "coo to bsr": lambda d: hybrid(d).to_sparse_bsr((2, 1)),
    "bsr mm": lambda d: dense(d, 4, 4).to_sparse_bsr((2, 2)) @ dense(d, 4, 5),
    "sampled_addmm": lambda d: torch.sparse.sampled_addmm(
        csr(d), dense(d, 4, 5), dense(d, 5, 3), beta=0.5, alpha=2
    ),
    "mm sum": lambda d: torch.sparse.mm(csr(d), dense(d, 3, 5), "sum"),
    "mm mean": lambda d: torch.sparse.mm(csr(d), dense(d, 3, 5), "mean"),
    "mm amax": lambda d: torch.sparse.mm(csr(d), dense(d, 3, 5), "amax"),
    "mm amin": lambda d: torch.sparse.mm(csr(d), dense(d, 3, 5), "amin"),
    "triangular_solve": lambda d: torch.triangular_solve(
        dense(d, 3, 2), (dense(d, 3, 3) + 2 * torch.eye(3, device=d)).tril().to_sparse_csr(), False
    )[0],
}


@pytest.mark.parametrize("name", OPS)
def test_ops(name: str) -> None:
    same(OPS[name])


def gradient(run: Callable[..., torch.Tensor], *make: Make) -> Callable[[str], Any]:
    def of(device: str) -> torch.Tensor:
        leaves = [m(device).requires_grad_() for m in make]
        out = run(*leaves)
        (out if out.layout is torch.strided else out.to_dense()).square().sum().backward()
        grads = [leaf.grad for leaf in leaves]
        return torch.stack([g.to_dense().flatten().sum() for g in grads if g is not None])

    return of


@pytest.mark.parametrize(
    "case",
    [
        gradient(torch.sparse.mm, coo, lambda d: dense(d, 3, 5)),
        gradient(torch.sparse.mm, coo, lambda d: coo(d).t()),
        gradient(lambda s: torch.sparse.sum(s, 0), coo),
        gradient(lambda s: torch.sparse.sum(s, 1), hybrid),
        gradient(lambda s: torch.sparse.softmax(s, 1), coo),
        gradient(lambda s: torch.sparse.log_softmax(s, 0), coo),
        gradient(lambda x: x.relu().to_sparse() * 2, lambda d: dense(d, 4, 3)),
        gradient(lambda v: torch.sparse_coo_tensor(
            torch.tensor(INDICES, device=v.device), v, (4, 3)).coalesce() * 3,
            lambda d: dense(d, 6)),
        gradient(lambda x: x.sparse_mask(coo(x.device.type, True)), lambda d: dense(d, 4, 3)),
        gradient(torch.sparse.mm, csr, lambda d: dense(d, 3, 5)),
        gradient(lambda a, b: torch.sparse.mm(a, b, "mean"), csr, lambda d: dense(d, 3, 5)),
        gradient(lambda a, b: torch.sparse.mm(a, b, "amax"), csr, lambda d: dense(d, 3, 5)),
        gradient(torch.sparse.sampled_addmm, csr,
            lambda d: dense(d, 4, 2), lambda d: dense(d, 2, 3)),
    ],
)  # fmt: skip
def test_gradients(case: Callable[[str], Any]) -> None:
    same(case)


@pytest.mark.parametrize("optimizer", ["SparseAdam", "SGD", "Adagrad"])
def test_embedding_with_sparse_gradients(optimizer: str) -> None:
    def run(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        table = torch.nn.Embedding(12, 4, sparse=True).to(device)
        step = getattr(torch.optim, optimizer)(list(table.parameters()), lr=0.1)
        for ids in ([1, 2, 1, 5], [0, 0, 0], [3, 11, 2, 2, 7]):
            step.zero_grad()
            table(torch.tensor(ids, device=device)).square().sum().backward()
            assert table.weight.grad is not None
            assert table.weight.grad.is_sparse
            step.step()
        return table.weight.detach()

    same(run)


def test_embedding_bag_and_gather_with_sparse_gradients() -> None:
    def bag(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        table = torch.nn.EmbeddingBag(12, 4, mode="sum", sparse=True).to(device)
        ids = torch.tensor([1, 2, 1, 5, 0, 11], device=device)
        table(ids, torch.tensor([0, 2, 3], device=device)).square().sum().backward()
        assert table.weight.grad is not None
        return table.weight.grad

    def gather(device: str) -> torch.Tensor:
        x = dense(device, 4, 3).requires_grad_()
        index = torch.tensor([[0, 1, 2], [3, 3, 0]], device=device)
        x.gather(0, index, sparse_grad=True).square().sum().backward()
        assert x.grad is not None
        return x.grad

    same(bag)
    same(gather)


def test_saved_and_printed() -> None:
    file = io.BytesIO()
    torch.save([coo("tpu"), csr("tpu")], file)
    file.seek(0)
    for was, now in zip([coo("cpu"), csr("cpu")], torch.load(file), strict=True):
        assert now.device.type == "tpu"
        assert torch.equal(now.to_dense().cpu(), was.to_dense())
        assert repr(now).replace("device='tpu:0', ", "") == repr(was)


def test_errors() -> None:
    bad = torch.tensor([[0, 9]], device="tpu")
    with pytest.raises(RuntimeError, match="size is inconsistent with indices"):
        torch.sparse_coo_tensor(bad, torch.ones(2, device="tpu"), (3,))
    with pytest.raises(RuntimeError, match=r"`crow_indices\[..., -1\] == nnz` is not satisfied"):
        torch.sparse_csr_tensor([0, 1, 1], [0, 1], [1.0, 2.0], (2, 2), device="tpu")
    with pytest.raises(RuntimeError, match="sorted and distinct"):
        torch.sparse_csr_tensor([0, 2, 2], [1, 0], [1.0, 2.0], (2, 2), device="tpu")
    with pytest.raises(RuntimeError, match=r"add\(sparse, dense\) is not supported"):
        coo("tpu") + torch.ones(4, 3, device="tpu")
    with pytest.raises(IndexError, match=r"index_select.*out of range"):
        coo("tpu").index_select(0, torch.tensor([7], device="tpu"))
    with pytest.raises(RuntimeError, match="must be a matrix, got 3-D tensor"):
        torch.addmm(dense("tpu", 4, 5), csr("tpu"), dense("tpu", 2, 3, 5))
    with pytest.raises(NotImplementedError, match="Could not run 'aten::cos'"):
        coo("tpu").cos()
