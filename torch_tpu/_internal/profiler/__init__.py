"""See torch_tpu.profiler."""

from torch_tpu.profiler import TpuProfilerConfig

__all__ = ["TpuProfilerConfig"]
