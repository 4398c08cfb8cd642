"""The names that clients of Google's torch-tpu use: docs/from_google_torch_tpu.md says where each
is, and this walks its tables. What the names do is tested in test_peer_ops.py and others."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_tpu

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from_google_torch_tpu.md"
ROW = re.compile(r"\| `(?P<name>torch[\w.]+)` \| (?P<state>[\w ]+) \|(?P<how>.*)\|")
# All names of its public table, by module.
PUBLIC = {
    "": "Event Stream stream set_stream current_stream default_stream current_device set_device "
    "device device_count device_of get_device_name get_device_properties get_amp_supported_dtype "
    "is_available is_initialized synchronize manual_seed manual_seed_all initial_seed "
    "get_rng_state set_rng_state default_generators EagerMode eager_mode set_eager_mode Precision "
    "precision allow_excess_precision topology_aware_mesh",
    "compiler.": "custom_compiler_options",
    "distributed.": "topology_aware_mesh spmd_safe set_tpu_launch_env window_num_stripes "
    "window_stripe_chunk_mb",
    "ops.": "max_pool1d max_pool2d max_pool3d max_pool1d_backward max_pool2d_backward "
    "max_pool3d_backward optimization_barrier send recv all_gather_dim reduce_scatter_dim "
    "ragged_all_to_all ragged_dot ragged_dot_weight_grad splash_sdpa sparse_dense_matmul "
    "sparse_dense_matmul_activation_unstack sparse_dense_matmul_gradient_stack "
    "sparse_dense_matmul_grad_with_adagrad sparse_dense_matmul_grad_with_adam "
    "sparse_dense_matmul_grad_with_sgd sparse_gather sparse_gather_backward sparse_iota "
    "sparse_map_row align_jagged_to_multiple strip_jagged_padding",
    "optimizers.": "AdamW Muon Optimizer Sgd SingleTraceTrainer",
    "pallas.": "jax_op get_pallas_mesh",
    "profiler.": "TpuProfilerConfig",
}


def rows() -> list[tuple[str, str, str]]:
    return [
        (match["name"], match["state"], match["how"].strip())
        for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))
    ]


def find(name: str) -> Any:
    """By import as far as modules go, then by attribute."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def test_every_public_name_has_a_row():
    listed = {name for name, _, _ in rows()}
    wanted = {f"torch.tpu.{m}{n}" for m, names in PUBLIC.items() for n in names.split()}
    assert len(wanted) == 71
    assert wanted <= listed, wanted - listed


@pytest.mark.parametrize(("name", "state", "how"), rows(), ids=[name for name, _, _ in rows()])
def test_row(name, state, how):
    if name.startswith(("torch.tpu.ops", "torch.tpu.pallas", "torch_tpu._internal.pallas")):
        pytest.importorskip("jax")
    if state in ("same", "mapped"):
        assert find(name) is not None
        return
    assert state == "not here"
    assert how
    if "can be imported" in how:
        with pytest.raises(NotImplementedError, match="here: "):
            find(name)()
        return
    with pytest.raises(AttributeError, match=r"has no attribute '\w+': \w+"):
        find(name)


def test_modules_are_those_of_the_package():
    import torch.tpu.compiler
    import torch.tpu.distributed

    assert torch.tpu.compiler is torch_tpu.compiler
    assert torch.tpu.distributed is torch_tpu.distributed
    assert torch_tpu.compiler.__spec__.name == "torch_tpu.compiler"
    assert "optimizers" in dir(torch.tpu)


def test_a_light_import(run_python):
    """None of it is imported before it is asked for."""
    out = run_python(
        """
        import sys
        import torch
        late = [m for m in sys.modules if m.startswith("torch_tpu.")]
        print([m for m in late if m.split(".")[1] in
               ("ops", "optimizers", "pallas", "_internal", "compiler", "profiler", "distributed")])
        """
    )
    assert out.strip() == "[]"


def test_eager_modes():
    names = torch.tpu.EagerMode
    before = torch_tpu.get_mode()
    with torch.tpu.eager_mode(names.DEFER_NEVER):
        assert torch_tpu.get_mode() == "strict"
        with torch.tpu.eager_mode(names.DEFER_NEVER_AND_LAUNCH_BLOCKING):
            assert torch_tpu.get_mode() == "debug"
        torch.tpu.set_eager_mode(names.DEFER_AND_FUSE)
        assert torch.tpu.get_eager_mode() is names.DEFER_AND_FUSE
    assert torch_tpu.get_mode() == before
    with pytest.raises(TypeError, match=r"EagerMode\.DEFER_NEVER, .* got 'strict'"):
        torch.tpu.set_eager_mode("strict")


def test_precision_is_part_of_keys(fresh_counts):
    x = torch.randn(8, 8, device="tpu")
    (x @ x).cpu()
    misses = torch_tpu.stats()["misses"]
    with torch.tpu.precision(torch.tpu.Precision.DEFAULT):
        assert torch.get_float32_matmul_precision() == "medium"
        (x @ x).cpu()
        assert torch_tpu.stats()["misses"] == misses + 1
        with torch.tpu.precision("highest"):
            (x @ x).cpu()
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch_tpu.stats()["misses"] == misses + 1
    with pytest.raises(ValueError, match=r"expected a torch\.tpu\.Precision or one of 'default'"):
        torch.tpu.precision("exact")


def test_precision_of_blocks_that_overlap():
    a, b = torch.tpu.precision("high"), torch.tpu.precision("default")
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "medium"
    b.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "highest"


def test_precision_of_compiled_functions():
    f = torch.compile(lambda x: x @ x)
    x = torch.randn(8, 8, device="tpu")
    f(x)
    programs = len(torch_tpu._C._programs())
    for name in ("high", "default", "high"):  # Dynamo tells only "highest" from the others
        with torch.tpu.precision(name):
            f(x)
    assert len(torch_tpu._C._programs()) == programs + 2


def test_backend_module():
    assert torch.backends.tpu.is_available()
    assert torch.backends.tpu.is_built()
    import torch.backends.tpu as module

    assert module is torch.backends.tpu


def test_profiler_config():
    from torch.profiler import profile
    from torch.tpu.profiler import TpuProfilerConfig

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = TpuProfilerConfig(host_tracer_level=2)
    with profile(experimental_config=config) as prof:
        torch.ones(3, device="tpu").sum().item()
    assert any("item" in event.name for event in prof.events())
    with pytest.warns(UserWarning, match="python_tracer_level=1.* changes nothing here"):
        assert TpuProfilerConfig(python_tracer_level=1).python_tracer_level == 1


def test_cache_stats(fresh_counts):
    x = torch.ones(5, device="tpu")
    for _ in range(3):
        x.exp().cpu()
    stats = torch.tpu._get_cache_stats()
    assert stats.num_cache_reqs >= stats.num_cache_hits >= 2
    entry = next(each for each in stats.per_entry_stats if "exp" in each.name)
    assert entry.read_count == 3
    assert entry.compilation_duration >= 0
    torch.tpu._clear_cache()
    assert not any("exp" in each.name for each in torch.tpu._get_cache_stats().per_entry_stats)


def test_internals():
    from torch_tpu._internal import execution_mode, hardware, sync
    from torch_tpu._internal.utils import hardware as by_clients

    x = torch.ones(4, device="tpu") * 3
    sync.synchronize(wait=False)
    sync.synchronize(x)
    sync.synchronize([x, torch.ones(1)], wait=True)
    assert torch_tpu._C._idle(0)
    assert by_clients.get_tpu_device_name is hardware.get_tpu_device_name
    if torch.tpu.get_device_properties().platform_kind != "tpu":
        assert hardware.get_tpu_device_name() is None
        assert hardware.get_tpu_topology() is None
    assert execution_mode.EagerMode is torch.tpu.EagerMode
    with pytest.raises(AttributeError, match="an internal of another package"):
        torch_tpu._internal.compile  # noqa: B018
