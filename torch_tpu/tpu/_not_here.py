"""Names of torch.cuda that torch.tpu has not, and what to use instead. Asking for one is an
AttributeError that says so; so `hasattr` answers as libraries expect."""

from __future__ import annotations

_COMPILE = "programs are captured and replayed by torch.compile: use torch.compile(f) instead"
_POOL = "device memory belongs to the PJRT plugin, which has no pools or allocators to choose"
_ADDRESS = "device memory has no addresses to hand out: make tensors with torch.empty instead"
_CUDA = "it speaks of CUDA's own library; there is none here"
_SENSOR = "PJRT tells nothing of it; use the machine's own tools (tpu-info, nvidia-smi)"
_OLD = "it is deprecated in torch.cuda, too: use {} instead"
_LEGACY = "tensor types are for PyTorch's own devices: use torch.empty(..., device='tpu')"

_DTYPES = (
    *("BFloat16", "Bool", "Byte", "Char", "ComplexDouble", "ComplexFloat", "Double", "Float"),
    *("Half", "Int", "Long", "Short"),
)

REASONS: dict[str, str] = {
    **{f"{name}Storage": _LEGACY for name in _DTYPES},
    **{f"{name}Tensor": _LEGACY for name in _DTYPES if not name.startswith("Complex")},
    "CUDAGraph": _COMPILE,
    "CUDAPluggableAllocator": _POOL,
    "CudaError": "errors of the device are RuntimeError and torch.OutOfMemoryError",
    "DeferredCudaCallError": "what waits for the client to start raises its own error",
    "ExternalStream": "streams of other libraries are not the plugin's",
    "GreenContext": _CUDA,
    "MemPool": _POOL,
    "caching_allocator_alloc": _ADDRESS,
    "caching_allocator_delete": _ADDRESS,
    "caching_allocator_disabled": _POOL,
    "caching_allocator_enable": _POOL,
    "change_current_allocator": _POOL,
    "check_error": _CUDA,
    "clock_rate": _SENSOR,
    "cudaStatus": _CUDA,
    "cudart": _CUDA,
    "current_blas_handle": _CUDA,
    "current_solver_handle": _CUDA,
    "gds": "files are read by torch_tpu.safetensors, which maps them",
    "get_stream_from_external": "streams of other libraries are not the plugin's",
    "graph": _COMPILE,
    "graph_pool_handle": _COMPILE,
    "graphs": _COMPILE,
    "green_contexts": _CUDA,
    "has_half": "float16 and bfloat16 always work",
    "has_magma": "linear algebra is compiled by XLA",
    "jiterator": "kernels are written in JAX or Pallas: torch_tpu.pallas.jax_op",
    "list_gpu_processes": _SENSOR,
    "make_graphed_callables": _COMPILE,
    "max_memory_cached": _OLD.format("max_memory_reserved"),
    "memory_cached": _OLD.format("memory_reserved"),
    "memory_usage": _SENSOR,
    "nccl": "collectives are torch.distributed's, backend 'tpu'",
    "nvtx": "ranges are torch.profiler.record_function's",
    "power_draw": _SENSOR,
    "reset_max_memory_cached": _OLD.format("reset_peak_memory_stats"),
    "sparse": "sparse tensors need no module of their own: see docs/sparse.md",
    "temperature": _SENSOR,
    "tunable": "XLA chooses the kernels of matrix products by itself",
    "use_mem_pool": _POOL,
}


def why_not(name: str) -> str:
    """The rest of an error's sentence: "" for a name that torch.cuda has not either."""
    reason = REASONS.get(name)
    return "" if reason is None else f": {reason}"
