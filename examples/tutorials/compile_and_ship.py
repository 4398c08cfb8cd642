"""# torch.compile, and programs made ahead

One program for a whole model, and a file that spares the next process the compiling.
"""

import tempfile
from pathlib import Path

import torch

import torch_tpu

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
model.to("tpu").eval()
x = torch.randn(8, 16, device="tpu")

# ## torch.compile
# As everywhere. The results are those of eager.

compiled = torch.compile(model)
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)

# ## A pack
# Everything that runs within the block is compiled into one file. Shipped with a program and named
# by the variable TORCH_TPU_PACK, it spares the first step its compiling.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.pack"
    with torch_tpu.record_pack(path) as pack, torch.no_grad():
        model(x).cpu()
    print(f"{pack.programs} programs, {path.stat().st_size} bytes")
    assert torch_tpu.load_pack(path) == pack.programs
