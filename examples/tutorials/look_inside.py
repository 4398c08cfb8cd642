"""# What was compiled, and why

Shapes that change from step to step compile again and again. This is how to see it, and what to do.
"""

import torch

import torch_tpu

# ## A loop whose lengths vary
# Strict Eager makes it plain: one op, one program.

torch_tpu.set_mode("strict")
torch_tpu.reset_stats()
for length in (100, 101, 102, 103):
    torch.softmax(torch.ones(4, length, device="tpu"), -1).sum().item()

# ## The report
# It names the op, the argument that changed, and the line.

report = torch_tpu.explain()
print(report)
changes = [change for miss in report.misses for change in miss.changes]
assert any(change.label == "input[0].shape[1]" for change in changes)

# ## Padding to one length
# Now the same loop compiles once.

for _ in range(2):  # the first turn compiles what is new
    torch_tpu.reset_stats()
    for length in (100, 101, 102, 103):
        x = torch.full((4, 128), float("-inf"), device="tpu")
        x[:, :length] = 1.0
        mask = torch.arange(128, device="tpu") < length
        torch.softmax(torch.where(mask, 1.0, float("-inf")), -1).sum().item()
print("programs compiled in the second turn:", torch_tpu.stats()["compiles"])
assert torch_tpu.stats()["compiles"] == 0
