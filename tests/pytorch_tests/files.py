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

# So many tests that several processes share the file.
LARGE = {
    *("test_torch", "test_nn", "test_ops", "test_ops_gradients", "test_ops_fwd_gradients"),
    *("test_unary_ufuncs", "test_binary_ufuncs", "test_reductions", "test_linalg", "test_foreach"),
    *("test_sparse", "test_sparse_csr", "test_nestedtensor", "test_decomp", "test_meta"),
    *("test_modules", "test_optim", "functorch/test_vmap", "functorch/test_ops"),
    *("test_tensor_creation_ops", "test_masked", "test_transformers", "test_prims"),
}


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
        return [name for name in GENERIC if (folder / f"{name}.py").exists()]
    found: list[str] = []
    for pattern in patterns:
        name = pattern.removeprefix("test/").removesuffix(".py")
        if (folder / f"{name}.py").exists():
            matches = [name]
        else:
            matches = [n for n in GENERIC if fnmatch.fnmatch(n, name)]
        if not matches:
            raise SystemExit(f"no file of {folder} is called {pattern!r}")
        found += [m for m in matches if m not in found]
    return found
