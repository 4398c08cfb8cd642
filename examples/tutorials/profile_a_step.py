"""# A timeline of a step

`torch.profiler` shows what the host asks for and what the device does, on one clock.
"""

import json
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
model.to("tpu")
x = torch.randn(32, 64, device="tpu")

# ## Recording
# `PrivateUse1` is how PyTorch calls a device such as ours. `record_function` names a part.


def step() -> float:
    with record_function("forward"):
        loss = model(x).square().mean()
    with record_function("backward"):
        loss.backward()
    return loss.item()


step()  # compile first
both = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
with profile(activities=both, with_stack=True) as prof:
    step()

# ## The table

print(prof.key_averages().table(sort_by="self_device_time_total", row_limit=8))

# ## The trace
# Open it in a browser at chrome://tracing or ui.perfetto.dev.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "trace.json"
    prof.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
on_device = [event["name"] for event in events if event.get("cat") == "kernel"]
print("programs on the device:", len(on_device))
assert on_device
