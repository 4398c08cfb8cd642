"""What a first call of a compiled function does not do twice, or in vain."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

from torch_tpu._compile import partition
from torch_tpu._compile.duplicates import merge_duplicates


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    counters.clear()


class Scaled(nn.Module):
    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.leaky_relu(self.norm(x) * self.scale, 0.1)


def traces() -> int:
    return counters["aot_autograd"]["total"]


def test_dynamic_traces_a_module_with_floats_once() -> None:
    cpu = Scaled()
    device = Scaled().to("tpu")
    device.load_state_dict(cpu.state_dict())
    compiled = torch.compile(device, backend="tpu", dynamic=True)
    for n in (17, 20, 33):
        x = torch.randn(n, 8)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), cpu(x))
    assert traces() == 1


def test_plain_compile_too() -> None:
    model = Scaled().to("tpu")
    torch.compile(model, dynamic=True)(torch.randn(17, 8, device="tpu"))
    assert traces() == 1


def test_float_of_a_module_that_changes_is_an_input() -> None:
    model = Scaled().to("tpu")
    compiled = torch.compile(model, backend="tpu", dynamic=True)
    x = torch.randn(17, 8, device="tpu")
    expected = torch.nn.functional.leaky_relu(model.norm(x), 0.1).cpu()
    seen = []
    for scale in (1.0, 2.0, 3.0, 4.5):
        model.scale = scale
        torch.testing.assert_close(compiled(x).cpu(), expected * scale)
        seen.append(traces())
    assert seen[-1] == seen[1]  # from the second value on, no more graphs


def test_other_devices_are_left_alone() -> None:
    """Floats of modules on the CPU are symbolic at once, as PyTorch has it."""
    found = []

    def look(gm: torch.fx.GraphModule, inputs: list[object]) -> object:
        found.append(sum(isinstance(value, Tensor) and value.dim() == 0 for value in inputs))
        return gm

    class Plain(nn.Module):
        scale = 1.5

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    torch.compile(Plain(), backend=look, dynamic=True)(torch.randn(5))
    torch.compile(Plain(), backend=look, dynamic=True)(torch.randn(5, device="tpu"))
    assert found == [1, 0]


def test_collector_leaves_out_what_was_there_before() -> None:
    frozen = []

    @torch.compile(backend="tpu")
    def function(x: Tensor) -> Tensor:
        return x + 1

    watch = torch._dynamo.callback.callback_handler
    torch.compile(lambda x: x - 1, backend="tpu")(torch.ones(3, device="tpu"))  # registers ours
    watch.register_start_callback(lambda _: frozen.append(gc.get_freeze_count()))
    function(torch.ones(3, device="tpu"))
    assert frozen[0] > 0
    assert gc.get_freeze_count() == 0
    assert gc.isenabled()


def test_what_the_user_froze_stays_frozen() -> None:
    torch.compile(lambda x: x - 1, backend="tpu")(torch.ones(3, device="tpu"))
    gc.freeze()
    try:
        torch.compile(lambda x: x * 3, backend="tpu")(torch.ones(3, device="tpu"))
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_local_map_is_still_found() -> None:
    higher_order_ops = pytest.importorskip("torch._dynamo.variables.higher_order_ops")
    variable = higher_order_ops.LocalMapWrappedHigherOrderVariable
    torch.compile(lambda x: x - 1, backend="tpu")(torch.ones(3, device="tpu"))
    assert not variable.should_wrap_in_hop(len)
    from torch.distributed.tensor.experimental._func_map import _local_map_wrapped

    with variable.enable():
        assert variable.should_wrap_in_hop(_local_map_wrapped)
        assert not variable.should_wrap_in_hop(len)


def joint_graph(model: nn.Module, x: Tensor) -> fx.GraphModule:
    found: list[fx.GraphModule] = []

    def kept(joint: fx.GraphModule, inputs: object, **kwargs: object) -> object:
        found.append(copy.deepcopy(joint))
        return partition.partition(joint, inputs, **kwargs)

    def keep(gm: fx.GraphModule, inputs: object) -> object:
        return make_boxed_func(gm.forward)

    backend = aot_autograd(fw_compiler=keep, partition_fn=kept)
    torch.compile(model, backend=backend)(x).sum().backward()
    return found[0]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_duplicates_are_those_pytorch_finds(dropout: float) -> None:
    from torch._functorch.compile_utils import fx_graph_cse

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).sigmoid() * self.layer(x.sin()) + x.sin().view(2, 80).view_as(x)

    joint = joint_graph(Model(), torch.randn(2, 5, 16))
    expected = fx_graph_cse(joint.graph)
    before = len(joint.graph.nodes)
    merge_duplicates(joint.graph)
    joint.graph.lint()
    assert len(joint.graph.nodes) == len(expected.nodes) < before


def test_what_only_looks_the_same_stays_apart() -> None:
    aten = torch.ops.aten
    graph = fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function
    same = [call(aten.add.Tensor, (x, 1)), call(aten.add.Tensor, (x, 1))]
    written = call(aten.mul.Tensor, (x, 3))
    other = [call(aten.add.Tensor, (x, value)) for value in (1.0, True, 0.0, -0.0)]
    random = [call(aten.rand_like.default, (x,)) for _ in range(2)]
    call(aten.copy_.default, (x, written))
    after = call(aten.add.Tensor, (x, 1))
    graph.output(tuple(same + other + random + [after]))
    merge_duplicates(graph)
    left = list(graph.nodes)[-1].args[0]
    assert left[0] is left[1]
    assert len(set(left)) == len(left) - 1


def test_imports_neither_inductors_code_nor_dtensors_experiments() -> None:
    script = """
import sys
import torch
model = torch.nn.Linear(4, 4).to("tpu")
optimizer = torch.optim.AdamW(model.parameters())
torch.compile(model, backend="tpu")(torch.ones(2, 4, device="tpu")).sum().backward()
torch.compile(optimizer.step, backend="tpu")()
heavy = ["torch._inductor.ir", "torch._inductor.scheduler", "torch.distributed.tensor.experimental"]
assert not [name for name in heavy if name in sys.modules], "imported"
"""
    subprocess.run([sys.executable, "-c", script], check=True)
