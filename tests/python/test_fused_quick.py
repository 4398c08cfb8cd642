"""Fused Eager, a piece met first: one quick program for it, better code in the background."""

from collections.abc import Callable
from pathlib import Path

WORK = """
import copy, torch, torch_tpu
from torch import nn
torch.manual_seed(0)
layers = [nn.Linear(7, 19), nn.Tanh(), nn.LayerNorm(19), nn.Linear(19, 23), nn.GELU()]
layers += [nn.Linear(23, 17), nn.Sigmoid(), nn.Linear(17, 29), nn.SiLU(), nn.LayerNorm(29)]
layers += [nn.Linear(29, 5), nn.Softmax(-1)]
cpu = nn.Sequential(*layers)
tpu = copy.deepcopy(cpu).to("tpu")
x = torch.randn(11, 7)
on_device = x.to("tpu")

def run():
    before = torch_tpu.stats()["compiles"]
    with torch.no_grad():
        torch.testing.assert_close(tpu(on_device).cumsum(0).exp().cpu(), cpu(x).cumsum(0).exp())
    torch_tpu.fused.wait()
    return torch_tpu.stats()["compiles"] - before

print(*[run() for _ in range(4)])
"""


def test_a_new_piece_is_one_program_and_a_better_one_later(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    env = {"TORCH_TPU_CACHE_DIR": str(tmp_path), "TORCH_TPU_MODE": "fused"}
    assert run_python(WORK, **env).split() == ["1", "1", "0", "0"]
    # The better one is on disk.
    assert run_python(WORK, **env).split() == ["0", "0", "0", "0"]


ONCE = WORK.replace("range(4)", "range(1)")


def test_quick_code_is_kept_until_there_is_better(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    env = {"TORCH_TPU_CACHE_DIR": str(tmp_path), "TORCH_TPU_MODE": "fused"}
    assert run_python(ONCE, **env).split() == ["1"]
    assert run_python(ONCE, **env).split() == ["0"]


OPTIMIZER = """
import torch, torch_tpu
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(7, 19), nn.Tanh(), nn.LayerNorm(19), nn.Linear(19, 23), nn.GELU(),
                    nn.Linear(23, 3)).to("tpu")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)

def step(n):
    x = torch.randn(n, 7).to("tpu")
    loss = nn.functional.cross_entropy(net(x), torch.arange(n).to("tpu") % 3)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()

for n in (20, 27, 31, 24, 22):
    step(n)
bounded = [p for p in torch_tpu.fused.programs() if p["bound"] is not None]
chains = [p for p in torch_tpu.fused.programs() if all("_foreach_" in op for op in p["ops"])]
# The optimizer's first step makes its states; forward and backward are those of the second, which
# brings another size, and so a program for all of them.
print(len(bounded), bounded[0]["runs"], len(chains), chains[0]["runs"])
"""


def test_forward_and_backward_are_apart_from_the_optimizer(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    env = {"TORCH_TPU_CACHE_DIR": str(tmp_path), "TORCH_TPU_MODE": "fused"}
    assert run_python(OPTIMIZER, **env).split() == ["1", "4", "1", "5"]
