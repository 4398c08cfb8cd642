// Control flow inside a recording, for torch_tpu/_compile/control_flow.py.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "csrc/bindings/bindings.h"
#include "csrc/dispatch/record.h"
#include "csrc/dispatch/record_regions.h"

namespace torch_tpu::bindings {

void bind_regions(py::module_& m) {
  m.def(
      "_is_recording", [] { return dispatch::Recorder::current() != nullptr; },
      "Whether this thread's ops are being recorded.");
  m.def("_record_if", &dispatch::record_if, py::arg("pred"), py::arg("on_true"),
        py::arg("on_false"), "A stablehlo.if over what two callables record.");
  m.def("_record_while", &dispatch::record_while, py::arg("inits"), py::arg("condition"),
        py::arg("body"), "A stablehlo.while over what two callables record.");
  m.def("_record_scan", &dispatch::record_scan, py::arg("inits"), py::arg("xs"), py::arg("length"),
        py::arg("body"), py::arg("reverse") = false,
        "A loop over dim 0 of xs that stacks what its body gives.");
  m.def("_record_select", &dispatch::record_select, py::arg("x"), py::arg("dim"), py::arg("index"),
        "x.select(dim, index) for an index on the device.");
  m.def("_record_sharding", &dispatch::record_sharding, py::arg("tensor"), py::arg("sharding"),
        "The tensor, spread over the devices of a partitioned program.");
  m.def(
      "_record_scope",
      [](std::string scope) {
        if (auto* recorder = dispatch::Recorder::current()) recorder->set_scope(std::move(scope));
      },
      py::arg("scope"), "From here on ops are printed with \"scope/op at file.py:12\".");
  m.def("_record_assert", &dispatch::record_assert, py::arg("condition"), py::arg("message"),
        "Raises a RuntimeError once the program has found the condition false.");
}

}  // namespace torch_tpu::bindings
