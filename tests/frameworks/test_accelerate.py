"""accelerate: its documented loop runs on the device, with the losses of the CPU."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import (
    Accelerator,
    PartialState,
    dispatch_model,
    infer_auto_device_map,
    init_empty_weights,
    load_checkpoint_and_dispatch,
)
from accelerate.utils import find_executable_batch_size, get_max_memory, set_seed
from frameworks.processes import run
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from torch_tpu import _frameworks


def data(rows: int = 64) -> TensorDataset:
    g = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(rows, 8, generator=g), torch.randn(rows, 1, generator=g))


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 1))


def parts(accelerator: Accelerator, dropout: float = 0.0, **loader: Any) -> Any:
    model = network(dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = DataLoader(data(), **{"batch_size": 8, **loader})
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    return accelerator.prepare(model, optimizer, batches, schedule)


def train(accelerator: Accelerator, model: Any, optimizer: Any, batches: Any, schedule: Any) -> Any:
    """The loop of accelerate's guide: accumulation, clipping, a schedule."""
    losses = []
    for x, y in batches:
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def losses(steps: int = 1, **options: Any) -> tuple[str, list[float]]:
    PartialState._reset_state()
    accelerator = Accelerator(gradient_accumulation_steps=steps, **options)
    together = parts(accelerator)
    result = [*train(accelerator, *together), *train(accelerator, *together)]
    device = next(together[0].parameters()).device
    assert device.type == accelerator.device.type
    type(accelerator.state)._reset_state(True)
    return device.type, result


@pytest.mark.parametrize("steps", [1, 4])
def test_it_trains_on_the_device_as_on_the_cpu(steps: int) -> None:
    device, ours = losses(steps)
    elsewhere, theirs = losses(steps, cpu=True)
    assert (device, elsewhere) == ("tpu", "cpu")
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert len(set(ours)) == 16


def test_bfloat16() -> None:
    device, ours = losses(mixed_precision="bf16")
    _, exact = losses()
    assert device == "tpu"
    assert ours == pytest.approx(exact, abs=0.05)
    assert ours != exact


def test_fp16_is_refused() -> None:
    with pytest.raises(ValueError, match="fp16 mixed precision requires"):
        Accelerator(mixed_precision="fp16")


def test_compiled() -> None:
    device, ours = losses(dynamo_backend="inductor")
    assert device == "tpu"
    assert ours == pytest.approx(losses()[1], abs=1e-5)


def test_workers_and_pinned_memory() -> None:
    """The device runs already when the workers are forked."""
    accelerator = Accelerator()
    torch.ones(2, device="tpu").sum().item()
    model, *others = parts(accelerator, num_workers=2, pin_memory=True, persistent_workers=True)
    ours = [*train(accelerator, model, *others), *train(accelerator, model, *others)]
    type(accelerator.state)._reset_state(True)
    assert ours == pytest.approx(losses()[1], abs=1e-5)


def test_the_same_losses_after_resuming(tmp_path: Path) -> None:
    accelerator = Accelerator()
    set_seed(3)
    together = parts(accelerator, dropout=0.5)
    train(accelerator, *together)
    accelerator.save_state(tmp_path)
    expected = train(accelerator, *together)
    assert train(accelerator, *together) != expected
    accelerator.load_state(tmp_path)
    assert train(accelerator, *together) == expected
    assert (tmp_path / "random_states_0.tpu.pkl").exists()


def test_a_checkpoint_of_another_device(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    parts(accelerator)
    accelerator.save_state(tmp_path)
    assert not (tmp_path / "random_states_0.tpu.pkl").exists()
    type(accelerator.state)._reset_state(True)
    accelerator = Accelerator()
    model = parts(accelerator)[0]
    with pytest.warns(UserWarning, match="no random state of the device 'tpu'"):
        accelerator.load_state(tmp_path)
    assert next(model.parameters()).device.type == "tpu"


def test_evaluation() -> None:
    accelerator = Accelerator()
    model, batches = accelerator.prepare(network(), DataLoader(data(20), batch_size=8))
    model.eval()
    found = []
    for x, y in batches:
        with torch.no_grad():
            predicted, wanted = accelerator.gather_for_metrics((model(x), y))
        assert predicted.device.type == "tpu"
        found.append((predicted - wanted).cpu())
    assert torch.cat(found).shape == (20, 1)
    x, y = data(20).tensors
    torch.testing.assert_close(torch.cat(found), network()(x).detach() - y)


def test_the_cpu_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    state = type(Accelerator(cpu=True).state)
    assert Accelerator().device == torch.device("cpu")  # decided by the first
    state._reset_state(True)
    assert Accelerator().device == torch.device("tpu")
    with pytest.raises(ValueError, match="cpu=True"):
        Accelerator(cpu=True)
    state._reset_state(True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    assert Accelerator().device == torch.device("cpu")


def test_a_version_that_would_take_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartialState, "default_device", torch.device("cpu"))
    with pytest.raises(RuntimeError, match="would train on the CPU"):
        Accelerator()


def test_a_version_that_is_not_known() -> None:
    with pytest.warns(RuntimeWarning, match=r"could not be adapted to the device 'tpu'"):
        _frameworks._adapter("accelerate")(types.ModuleType("accelerate"))


@pytest.mark.parametrize("first", ["accelerate", "torch", "accelerate, torch_tpu"])
def test_whoever_is_imported_first(first: str) -> None:
    code = f"import {first}\nfrom accelerate import Accelerator\nprint(Accelerator().device)"
    autoload = "0" if "torch_tpu" in first else "1"
    warn = ("-W", "error::RuntimeWarning")
    assert run(*warn, "-c", code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload) == "tpu\n"


# Models larger than the device


def test_memory_of_the_device() -> None:
    found = get_max_memory()
    assert list(found) == [0, "cpu"]
    assert found[0] == pytest.approx(torch.tpu.mem_get_info()[0], rel=0.2)
    assert get_max_memory({"cpu": "2KB", 0: "1KB"}) == {0: 1000, "cpu": 2000}
    with pytest.raises(ValueError, match="no device tpu:1, only 1"):
        get_max_memory({1: "1KB"})


# Layers of 4224 bytes. accelerate keeps room for one that is brought from the host.
SOME: dict[Any, Any] = {0: 13000, "cpu": "1MB"}


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(4))).eval()


@pytest.mark.parametrize(("memory", "devices"), [(None, {0}), (SOME, {0, "cpu"})])
def test_automatic_placement(memory: Any, devices: Any, tmp_path: Path) -> None:
    model, x = deep(), torch.randn(4, 32)
    Accelerator().save_model(model, tmp_path)
    with init_empty_weights():
        empty = deep()
    file = str(tmp_path / "model.safetensors")
    memory = None if memory is None else dict(memory)
    placed = load_checkpoint_and_dispatch(empty, file, device_map="auto", max_memory=memory)
    assert set(placed.hf_device_map.values()) == devices
    assert placed[0].weight.device.type == "tpu"
    with torch.no_grad():
        torch.testing.assert_close(placed(x.to("tpu")).cpu(), model(x))


def test_dispatched_by_a_map() -> None:
    model, x = deep(), torch.randn(4, 32)
    expected = model(x).detach()
    placed = dispatch_model(model, infer_auto_device_map(model, max_memory=dict(SOME)))
    assert placed[0].weight.device.type == "tpu"
    assert placed[3].weight.device.type == "meta"  # on the host, and here while it runs
    with torch.no_grad():
        result = placed(x)
    assert result.device.type == "cpu"  # where x came from
    torch.testing.assert_close(result, expected)


def test_a_batch_size_that_fits() -> None:
    tried = []

    @find_executable_batch_size(starting_batch_size=64)
    def attempt(batch_size: int) -> int:
        tried.append(batch_size)
        wanted = batch_size * torch.tpu.mem_get_info()[1] // 200
        torch.ones(wanted, device="tpu").sum().item() if batch_size > 50 else None
        return batch_size

    assert attempt() < 64
    assert len(tried) > 1


def test_launchers(tmp_path: Path) -> None:
    """`accelerate launch` starts as many processes as it is told, with either flag or none."""
    script = tmp_path / "script.py"
    script.write_text(
        "from accelerate import Accelerator\n"
        "a = Accelerator()\n"
        "text = f'{a.process_index} of {a.num_processes} on {a.device.type}\\n'\n"
        "print(text, end='', flush=True)\n"
        "a.end_training()\n"
    )
    module, port = "accelerate.commands.accelerate_cli", ("--main_process_port", "0")
    launch = ("-m", module, "launch", *port, "--num_processes")
    for flags, expected in (
        (("2",), ["0 of 2 on tpu", "1 of 2 on tpu"]),
        (("2", "--tpu"), ["0 of 2 on tpu", "1 of 2 on tpu"]),
        (("1", "--cpu"), ["0 of 1 on cpu"]),
    ):
        output = run(*launch, *flags, script)
        assert sorted(line for line in output.splitlines() if " of " in line) == expected


def test_notebook_launcher(tmp_path: Path) -> None:
    from distributed.ranks import free_port

    script = tmp_path / "cell.py"
    script.write_text(
        "import torch\n"
        "from accelerate import Accelerator, notebook_launcher\n"
        "def train():\n"
        "    a = Accelerator()\n"
        "    x = a.reduce(torch.ones(1, device=a.device) + a.process_index)\n"
        "    print(f'{x.device.type} {x.item()}\\n', end='', flush=True)\n"
        "    a.end_training()\n"
        f"notebook_launcher(train, num_processes=2, use_port='{free_port()}')\n"
    )
    output = run(script).splitlines()
    assert output == ["Launching training on 2 TPUs.", "tpu 3.0", "tpu 3.0"]


# Two ranks


def rank_trains(kind: str, precision: str) -> tuple[list[float], list[float], str]:
    """Losses of eight steps over all ranks, and those of the last four after resuming."""
    import tempfile
    from datetime import timedelta

    import frameworks.tiny as tiny
    import torch.distributed as dist
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils import InitProcessGroupKwargs

    tiny.as_launched()
    options: dict[str, Any] = {"mixed_precision": precision}
    if kind == "fsdp2":
        options["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
            cpu_ram_efficient_loading=False,
        )
    options["kwargs_handlers"] = [InitProcessGroupKwargs(timeout=timedelta(seconds=100))]
    accelerator = Accelerator(**options)
    folder = [tempfile.mkdtemp() if accelerator.is_main_process else ""]
    dist.broadcast_object_list(folder)
    model = tiny.llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = DataLoader(TensorDataset(tiny.tokens(32)), batch_size=2)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    found: list[float] = []
    for again in (False, True):
        for step, (x,) in enumerate(batches):
            if again and step < 4:
                continue
            loss = model(input_ids=x, labels=x).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            found.append(accelerator.reduce(loss.detach().float(), "mean").item())
            if not again and step == 3:
                accelerator.save_state(folder[0])
        if not again:
            accelerator.load_state(folder[0])
    return found[:8], found[8:], str(accelerator.distributed_type)


@pytest.mark.parametrize(
    ("kind", "precision"), [("ddp", "no"), ("ddp", "bf16"), ("fsdp2", "no"), ("fsdp2", "bf16")]
)
def test_two_ranks_equal_one(kind: str, precision: str, two: Any) -> None:
    import frameworks.tiny as tiny

    (first, after, type_), (second, _, _) = two.run(rank_trains, kind, precision, timeout=250)
    assert first == second
    assert after == pytest.approx(first[4:], abs=1e-5 if precision == "no" else 1e-2)
    assert type_ == f"DistributedType.{'FSDP' if kind == 'fsdp2' else 'MULTI_GPU'}"
    model = tiny.llama().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    alone = []
    for x in tiny.tokens(32).to("tpu").split(4):
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        alone.append(loss.item())
    assert first == pytest.approx(alone, abs=1e-4 if precision == "no" else 5e-2)


def rank_gathers() -> tuple[list[float], str]:
    import frameworks.tiny as tiny

    tiny.as_launched()
    accelerator = Accelerator()
    batches = accelerator.prepare(DataLoader(TensorDataset(torch.arange(11.0)), batch_size=2))
    found = [accelerator.gather_for_metrics(x) for (x,) in batches]
    with accelerator.split_between_processes(list(range(5))) as share:
        assert len(share) == 3 - accelerator.process_index
    return sorted(torch.cat(found).tolist()), str(found[0].device)


def test_two_ranks_gather_each_sample_once(two: Any) -> None:
    samples = [float(i) for i in range(11)]
    assert two.run(rank_gathers, timeout=250) == [(samples, "tpu:0"), (samples, "tpu:1")]


def rank_stays_on_the_cpu() -> str:
    import frameworks.tiny as tiny

    tiny.as_launched()
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    return Accelerator(cpu=True).device.type


def test_two_ranks_on_the_cpu(two: Any) -> None:
    assert two.run(rank_stays_on_the_cpu, timeout=250) == ["cpu", "cpu"]
