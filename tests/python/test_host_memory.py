"""XLA:CPU's memory stays with the process between steps, and goes back on request."""

from __future__ import annotations

STEPS = """
import resource, torch, torch_tpu
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(64, 512).to("tpu")
def step():
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch_tpu.fused.compile_when("first")
for _ in range(30):
    step()
before = faults()
for _ in range(50):
    step()
print((faults() - before) / 50)
"""

RELEASE = """
import torch, torch_tpu
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
x = torch.ones(1 << 20, device="tpu")
x.cpu()
kept = [x + i for i in range(64)]
for each in kept:
    each.cpu()
del kept, each
before = resident()
torch.tpu.empty_cache()
print((before - resident()) >> 20)
"""


def test_steps_do_not_fault_their_pages_in_again(run_python):
    """Four gradients of 1 MiB are 1024 pages; malloc as it comes returns them every step."""
    assert float(run_python(STEPS)) < 200


def test_malloc_tuned_by_the_user_is_left_alone(run_python):
    assert float(run_python(STEPS, MALLOC_TRIM_THRESHOLD_="131072")) > 400


def test_empty_cache(run_python):
    assert int(run_python(RELEASE)) > 30
