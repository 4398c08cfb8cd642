// Control flow and random state inside a recording, for torch_tpu/_compile/control_flow.py and
// random.py.
#include "csrc/dispatch/record/regions.h"

#include <c10/util/ScopeExit.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "csrc/bindings/bindings.h"
#include "csrc/dispatch/record/recorder.h"

namespace torch_tpu::bindings {
namespace {

dispatch::Recorder& recorder() {
  dispatch::Recorder* current = dispatch::Recorder::current();
  TORCH_CHECK(current != nullptr, "Nothing is being recorded.");
  return *current;
}

}  // namespace

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
  m.def("_record_check", &dispatch::record_check, py::arg("flag"), py::arg("kind"),
        py::arg("message"), "A check of another program: its flag, as int64[].");
  m.def(
      "_record_rng_state", [] { return recorder().rng_state(); },
      "The state that the next random op of the recording will draw from, int64[2].");
  m.def(
      "_record_with_rng_state",
      [](const at::Tensor& state, const std::function<py::object()>& draw) {
        dispatch::Recorder& recorder = bindings::recorder();
        recorder.use_rng_state(state);
        const auto back = c10::make_scope_exit([&] { recorder.use_rng_state({}); });
        return draw();
      },
      py::arg("state"), py::arg("draw"), "Records a callable whose random ops draw from a state.");
}

}  // namespace torch_tpu::bindings
