"""Which files of PyTorch's `test` folder are run, and how a name of the user's finds them."""

from __future__ import annotations

import fnmatch
import importlib.metadata
from pathlib import Path

# Written for any device: PyTorch makes a class of tests for each device type that it finds.
GENERIC = (
    *("test_torch", "test_nn", "test_autograd", "test_ops", "test_ops_gradients"),
    *("test_ops_fwd_gradients", "test_unary_ufuncs", "test_binary_ufuncs", "test_reductions"),
    *("test_linalg", "test_indexing", "test_view_ops", "test_shape_ops", "test_sort_and_select"),
    *("test_scatter_gather_ops", "test_tensor_creation_ops", "test_type_promotion"),
    *("test_spectral_ops", "test_segment_reductions", "test_masked", "test_maskedtensor"),
    *("test_complex", "test_foreach", "test_optim", "test_modules", "test_transformers"),
    *("test_sparse", "test_sparse_csr", "test_nestedtensor", "test_dlpack", "test_serialization"),
    *("test_dataloader", "test_multiprocessing", "test_autocast", "test_accelerator"),
    *("test_fake_tensor", "test_decomp", "test_expanded_weights", "test_numpy_interop"),
    *("test_testing", "test_meta", "test_prims", "nn/test_convolution", "nn/test_pooling"),
    *("nn/test_dropout", "nn/test_embedding", "nn/test_multihead_attention"),
    *("functorch/test_vmap", "functorch/test_ops", "functorch/test_eager_transforms"),
    *("functorch/test_control_flow", "profiler/test_profiler"),
    *("higher_order_ops/test_invoke_subgraph", "higher_order_ops/test_with_effects"),
)

# The helpers of these files know CUDA, XPU, HPU by name, and must hear of the device: helpers.py.
COMPILED = (
    *("dynamo/test_activation_checkpointing", "dynamo/test_activation_offloading"),
    *("dynamo/test_aot_autograd_cache", "dynamo/test_aot_compile", "dynamo/test_autograd_function"),
    *("dynamo/test_backends", "dynamo/test_callback", "dynamo/test_ctx_manager"),
    *("dynamo/test_debug_utils", "dynamo/test_dynamo_decompositions", "dynamo/test_dynamo_ops"),
    *("dynamo/test_export", "dynamo/test_functions", "dynamo/test_guard_manager"),
    *("dynamo/test_higher_order_ops", "dynamo/test_logging", "dynamo/test_minifier"),
    *("dynamo/test_misc", "dynamo/test_model_output", "dynamo/test_modes", "dynamo/test_modules"),
    *("dynamo/test_precompile_context", "dynamo/test_python_dispatcher"),
    *("dynamo/test_recompile_ux", "dynamo/test_reconstruct", "dynamo/test_repros"),
    *("dynamo/test_unspec", "export/test_export", "export/test_hop", "export/test_serialize"),
    *("export/test_passes", "export/test_torchbind", "export/test_experimental"),
    *("inductor/test_torchinductor", "inductor/test_torchinductor_dynamic_shapes"),
    *("inductor/test_torchinductor_opinfo", "inductor/test_unbacked_symints"),
    *("inductor/test_control_flow", "inductor/test_compiled_optimizers"),
    *("inductor/test_compiled_autograd", "inductor/test_flex_attention"),
)

# Every rank of these has a process and a device of its own. A pattern stands for a folder's tests.
DISTRIBUTED = (
    *("distributed/tensor/*", "distributed/tensor/debug/*", "distributed/tensor/experimental/*"),
    *(
        "distributed/tensor/parallel/*",
        "distributed/_composable/*",
        "distributed/_composable/fsdp/*",
    ),
    *("distributed/_composable/test_composability/*", "distributed/pipelining/*"),
    *("distributed/checkpoint/*", "distributed/checkpoint/e2e/*", "distributed/checkpoint/fsdp/*"),
    *("distributed/test_device_mesh", "distributed/test_functional_api"),
    *("distributed/test_functional_differentials", "distributed/test_dynamo_distributed"),
)
RANKS = 4

# So many tests that several processes share the file.
LARGE = {
    *("test_torch", "test_nn", "test_ops", "test_ops_gradients", "test_ops_fwd_gradients"),
    *("test_unary_ufuncs", "test_binary_ufuncs", "test_reductions", "test_linalg", "test_foreach"),
    *("test_sparse", "test_sparse_csr", "test_nestedtensor", "test_decomp", "test_meta"),
    *("test_modules", "test_optim", "functorch/test_vmap", "functorch/test_ops"),
    *("test_tensor_creation_ops", "test_masked", "test_transformers", "test_prims"),
    *("dynamo/test_misc", "dynamo/test_repros", "export/test_export", "dynamo/test_functions"),
    *("inductor/test_torchinductor", "inductor/test_torchinductor_dynamic_shapes"),
    *("inductor/test_torchinductor_opinfo", "inductor/test_flex_attention"),
}


def hears_of_device(name: str) -> bool:
    """Whether PyTorch's helpers are taught for this file: those of GENERIC need none of it."""
    return name.startswith(("dynamo/", "export/", "inductor/", "distributed/"))


def variables_of(name: str) -> dict[str, str]:
    """The environment of a file's tests: a device for each rank."""
    if name.startswith("distributed/"):
        return {"TORCH_TPU_CPU_DEVICES": str(RANKS)}
    return {}


def all_files(folder: Path) -> list[str]:
    """Every file that is written for any device, as far as the checkout has it."""
    found: list[str] = []
    for name in (*GENERIC, *COMPILED, *DISTRIBUTED):
        pattern = f"{name[:-1]}test_*.py" if name.endswith("*") else f"{name}.py"
        found += [str(p.relative_to(folder).with_suffix("")) for p in sorted(folder.glob(pattern))]
    return found


def chosen_files(checkout: Path, patterns: list[str]) -> list[str]:
    """Names under `test`, without `.py`: the given ones, or all that are written for any device."""
    folder = checkout / "test"
    version = importlib.metadata.version("torch").split("+")[0]
    if not folder.is_dir():
        raise SystemExit(
            f"{checkout} has no folder `test`: PYTORCH= takes the root of a checkout of PyTorch,\n"
            f"best at the tag of the installed torch: git clone --depth 1 --branch v{version} "
            "https://github.com/pytorch/pytorch"
        )
    if not patterns:
        return all_files(folder)
    found: list[str] = []
    for pattern in patterns:
        name = pattern.removeprefix("test/").removesuffix(".py")
        if (folder / f"{name}.py").exists():
            matches = [name]
        else:
            matches = [n for n in all_files(folder) if fnmatch.fnmatch(n, name)]
        if not matches:
            raise SystemExit(f"no file of {folder} is called {pattern!r}")
        found += [m for m in matches if m not in found]
    return found
