// The areas of the native module torch_tpu._C, one function and one file each.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_tpu::bindings {

namespace py = pybind11;

void bind_runtime(py::module_& m);      // plugin, client, environment
void bind_device(py::module_& m);       // devices, memory, streams, generators
void bind_dispatch(py::module_& m);     // ops, programs, modes
void bind_decompose(py::module_& m);    // PyTorch's Python decompositions
void bind_fused(py::module_& m);        // Fused Eager
void bind_explain(py::module_& m);      // journal, programs, misses
void bind_cache(py::module_& m);        // programs on disk and in packs
void bind_compiled(py::module_& m);     // graphs of torch.compile
void bind_exported(py::module_& m);     // modules from files
void bind_regions(py::module_& m);      // control flow inside a recording
void bind_foreign(py::module_& m);      // kernels in JAX and Pallas
void bind_topology(py::module_& m);     // compiling for devices that are not attached
void bind_distributed(py::module_& m);  // process group, flight recorder
void bind_spmd(py::module_& m);         // programs over several devices

}  // namespace torch_tpu::bindings
