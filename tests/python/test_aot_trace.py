"""Tracing ahead of time: no memory, the same values as PyTorch, and nothing changed afterwards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_tpu
from torch_tpu import _C, aot


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.register_buffer("scale", torch.full((width,), 0.5))

    def forward(self, x, shift):
        return x + self.scale * self.down(F.gelu(self.up(self.norm(x)))) + shift


class Stack(nn.Module):
    def __init__(self, width: int = 8, layers: int = 5) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.shift = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, self.shift)
        return x


def loss(model, x):
    return model(x).square().mean()


def run(traced: aot.Traced, tensors: list[torch.Tensor]) -> tuple[list, list]:
    """Runs the module on this machine: its results, and the arguments as they are afterwards."""
    made = traced.made
    outputs = [
        (write, dtype or traced.arguments[write].dtype, shape, strides)
        for write, dtype, shape, strides in made["outputs"]
    ]
    inputs = [(a.dtype, a.shape) for a in traced.arguments]
    args = (made["kept"], outputs, made["checks"], made["draws"])
    graph = _C._load_module(traced.name, traced.text, 0, inputs, *args)
    function = _C._CompiledFunction()
    function.add(graph, [], [...] * sum(write < 0 for write, *_ in outputs))
    given = [t.to("tpu") for t in tensors]
    results = function(list(given))
    assert results is not None
    return [r.cpu() for r in results], [t.cpu() for t in given]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_step_is_the_one_of_pytorch(optimizer):
    torch.manual_seed(0)
    model = Stack()
    x = torch.randn(4, 8)
    opt = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    traced = aot.trace(aot.TrainStep(model, opt, loss), (x,))
    assert not opt.state
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]), name
        assert p.grad is None
    values = {**before, **dict(model.named_buffers()), "input0": x}
    tensors = [
        values[a.name] if a.name in values else torch.zeros(a.shape) for a in traced.arguments
    ]
    results, after = run(traced, tensors)

    expected = loss(model, x)
    expected.backward()
    opt.step()
    assert torch.allclose(results[0], expected, atol=1e-6)
    for argument, value in zip(traced.arguments, after, strict=True):
        if argument.kind == "parameter":
            assert argument.donated
            p = model.get_parameter(argument.name).detach()
            assert torch.allclose(value, p, atol=1e-5), argument.name


def test_layers_as_one_loop_do_the_same():
    torch.manual_seed(0)
    model = Stack()
    x = torch.randn(4, 8)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    step = aot.TrainStep(model, opt, loss)
    traced = aot.trace(step, (x,), scan="blocks")
    assert len(model.blocks) == 5
    assert len(traced.arguments) < len(list(model.parameters()))
    assert traced.text.count("stablehlo.while") == 2
    tensors = []
    for a in traced.arguments:
        if a.name.startswith("blocks.*."):
            name = a.name.removeprefix("blocks.*.")
            tensors.append(torch.stack([b.get_parameter(name).detach() for b in model.blocks]))
        elif a.kind == "buffer":
            tensors.append(model.blocks[0].scale)
        elif a.kind == "input":
            tensors.append(x)
        else:
            tensors.append(model.get_parameter(a.name).detach().clone())
    results, after = run(traced, tensors)
    assert torch.allclose(results[0], step(x), atol=1e-6)
    for a, value in zip(traced.arguments, after, strict=True):
        if a.name.startswith("blocks.*."):
            name = a.name.removeprefix("blocks.*.")
            expected = torch.stack([b.get_parameter(name).detach() for b in model.blocks])
            assert torch.allclose(value, expected, atol=1e-6), a.name
        elif a.name in ("shift", "first.weight"):
            assert torch.allclose(value, model.get_parameter(a.name), atol=1e-6), a.name


@pytest.mark.usefixtures("steady_memory")
def test_nothing_has_memory():
    before = torch.tpu.memory_allocated()
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(16384, 16384) for _ in range(12)))  # 13 GB
    opt = torch.optim.AdamW(model.parameters())
    x = torch.empty(64, 16384, device="meta")
    traced = aot.trace(aot.TrainStep(model, opt, loss), (x,))
    assert sum(a.bytes for a in traced.arguments) > 36e9
    assert torch.tpu.memory_allocated() == before
    assert model[0].weight.device.type == "meta"


def test_labels_say_where_an_op_comes_from():
    model = Stack(layers=2)
    text = aot.trace(model, (torch.zeros(4, 8),)).text
    assert 'loc("blocks.1.up/aten::' in text
    assert 'loc("blocks.0/aten::add.Tensor at test_aot_trace.py:' in text
    assert " loc(" not in torch_tpu_text(model)


def torch_tpu_text(model) -> str:
    """Without a trace ahead of time there are none."""
    x = torch.zeros(4, 8)
    with torch.no_grad(), _C._Recording(0, "tpu") as recording:
        stand_in = recording.parameter([4, 8], [8, 1], x.dtype)
        return recording.module("plain", [stand_in + 1])["text"]


def test_shards_are_written_into_the_module():
    model = nn.Sequential(nn.Linear(64, 128, device="meta"), nn.Linear(128, 64, device="meta"))
    opt = torch.optim.AdamW(model.parameters())
    step = aot.TrainStep(model, opt, loss)
    traced = aot.trace(step, (torch.empty(8, 64, device="meta"),), shard=aot.Shard(4))
    divided = {a.name: a.divided for a in traced.arguments}
    assert divided["0.weight"] == divided["0.weight.exp_avg"] == 0  # [128, 64]
    assert divided["1.weight"] == 1
    assert divided["0.bias"] is None
    assert divided["input0"] == 0
    assert "mhlo.num_partitions = 4" in traced.text
    assert traced.text.count('mhlo.sharding = "{devices=[4,1]<=[4]}"') == 3 * 2 + 1
    assert traced.text.count('mhlo.sharding = "{devices=[1,4]<=[4]}"') == 3 * 2
    rule = aot.Shard(4, rule=lambda kind, name, shape: 0)
    with pytest.raises(aot.AotError, match=r"divides dim 0 of weight \[3, 4\] among 4"):
        aot.trace(nn.Linear(4, 3), (torch.zeros(4, 4),), shard=rule)


def test_inputs_that_cannot_be_divided_are_noted():
    model = nn.Linear(8, 8, device="meta")
    for rows, kind in ((3, "data"), (3, "fsdp")):
        traced = aot.trace(
            model, (torch.empty(rows, 8, device="meta"),), shard=aot.make_shard(kind, 4)
        )
        assert any("each of the 4 devices does all of the work" in n for n in traced.notes)
        assert any("[(3, 8)] a multiple of 4" in n for n in traced.notes)
    assert not aot.trace(
        model, (torch.empty(4, 8, device="meta"),), shard=aot.make_shard("data", 4)
    ).notes
    by_rule = aot.Shard(4, rule=lambda kind, name, shape: None)
    assert not aot.trace(model, (torch.empty(3, 8, device="meta"),), shard=by_rule).notes


def test_bad_input():
    model = nn.Linear(4, 4)
    with pytest.raises(aot.AotError, match="as a tuple"):
        aot.trace(model, torch.zeros(1, 4))
    with pytest.raises(aot.AotError, match="expected a module or a function"):
        aot.trace(3, ())
    with pytest.raises(aot.AotError, match=r"cannot be traced.*mat1 and mat2"):
        aot.trace(model, (torch.zeros(1, 5),))
    with pytest.raises(aot.AotError, match=r"reads values of tensors on the host.*torch_tpu.lint"):
        aot.trace(lambda x: x * x.sum().item(), (torch.zeros(3),))
    with pytest.raises(aot.AotError, match=r"no ModuleList 'layers'.*blocks"):
        aot.trace(Stack(), (torch.zeros(4, 8),), scan="layers")
    other = torch.optim.SGD(nn.Linear(2, 2).parameters())
    with pytest.raises(aot.AotError, match="no module given has"):
        aot.trace(aot.TrainStep(model, other, loss), (torch.zeros(1, 4),))
    assert model.weight.device.type == "cpu"


def test_a_function_finds_its_model():
    model = nn.Linear(4, 4)

    def step(x):
        return model(x).relu()

    traced = aot.trace(step, (torch.zeros(2, 4),))
    assert [a.name for a in traced.arguments] == ["weight", "bias", "input0"]


def test_risks_of_more_programs():
    model = nn.Linear(4, 4)
    opt = torch.optim.AdamW(model.parameters())
    traced = aot.trace(
        aot.TrainStep(model, opt, lambda m, x, k: loss(m, x) * k), (torch.zeros(3, 4), 2.0)
    )
    text = " ".join(traced.risks)
    assert "Python numbers" in text
    assert "capturable=True" in text
    assert "multiple of 8" in text
    assert torch_tpu.aot is aot


def test_a_model_of_transformers():
    """It reads a mask on the host unless it is told that it is compiled."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        vocab_size=128,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    opt = torch.optim.AdamW(model.parameters())
    step = aot.TrainStep(model, opt, lambda m, x: m(input_ids=x, labels=x, use_cache=False).loss)
    tokens = torch.empty(2, 16, dtype=torch.long, device="meta")
    plain = aot.trace(step, (tokens,))
    assert all(a.donated for a in plain.arguments if a.kind in ("parameter", "state"))
    looped = aot.trace(step, (tokens,), scan="model.layers")
    assert looped.text.count("stablehlo.while") == plain.text.count("stablehlo.while") + 2
    assert len(looped.text) < len(plain.text) / 2
    assert not torch.compiler.is_compiling()
