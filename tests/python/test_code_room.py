"""Programs leave before the process has more memory mappings than Linux allows it."""

from __future__ import annotations

MANY = """
import torch, torch_tpu
from torch_tpu import _C
torch_tpu.set_mode("strict")
ones = lambda n: torch.ones(n, device="tpu")
assert ones(3).add(1).tolist() == [2.0] * 3
used, limit = _C._mappings()
assert 0 < used < limit
bound = (used + 100) * 4 // 3
_C._set_mapping_limit(bound)
most = 0
for n in range(4, 84):
    assert ones(n).add(1).sum().item() == 2.0 * n
    most = max(most, _C._mappings()[0])
stats = torch_tpu.stats()
assert stats["evictions"] > 0, stats
assert most < bound, (most, bound)
assert ones(3).add(1).tolist() == [2.0] * 3  # dropped long ago: compiled again
print("right", most, bound, stats["evictions"])
"""

NO_ROOM = """
import torch, torch_tpu
from torch_tpu import _C
x = torch.ones(3, device="tpu")
x.cpu()
_C._set_mapping_limit(_C._mappings()[0] // 2)
try:
    x.cosh().cpu()
except RuntimeError as error:
    print(error)
_C._set_mapping_limit(0)
assert torch.allclose(x.sinh().cpu(), torch.ones(3).sinh())
print("goes on")
"""


def test_programs_leave_in_time(run_python):
    assert "right" in run_python(MANY, TORCH_TPU_CACHE_DIR="off")


def test_no_room_left(run_python):
    out = run_python(NO_ROOM, TORCH_TPU_CACHE_DIR="off")
    assert "memory mappings" in out
    assert "sysctl -w vm.max_map_count=" in out
    assert "goes on" in out
