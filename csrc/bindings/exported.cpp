// Modules that come from files: what they take and give, and loading them. See torch_tpu/_export.
#include "csrc/dispatch/graph/exported.h"

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/dtype.h"
#include "csrc/ops/call.h"
#include "csrc/ops/check_kind.h"
#include "csrc/stablehlo/signature.h"

namespace torch_tpu::bindings {
namespace {

using dispatch::CompiledPtr;

CompiledPtr load_module(const std::string& name, const std::string& text, int device,
                        const py::list& inputs, const py::list& kept, const py::list& outputs,
                        const std::vector<std::pair<std::string, std::string>>& checks,
                        uint64_t draws) {
  dispatch::ModuleToLoad module{name, text, device, {}, {}, {}, {}, draws};
  using Sizes = std::vector<int64_t>;
  for (const py::handle& item : inputs) {
    const auto [dtype, sizes] = item.cast<std::pair<py::object, Sizes>>();
    module.inputs.push_back({scalar_type(dtype), sizes});
  }
  for (const py::handle& item : kept) {
    module.kept.push_back(item.is_none() ? at::Tensor() : item.cast<at::Tensor>());
  }
  for (const py::handle& item : outputs) {
    const auto [write, dtype, sizes, strides] =
        item.cast<std::tuple<int, py::object, Sizes, Sizes>>();
    module.outputs.push_back({write, scalar_type(dtype), sizes, strides});
  }
  for (const auto& [kind, message] : checks) {
    module.checks.push_back({message, ops::check_kind(kind)});
  }
  const py::gil_scoped_release release;
  return dispatch::load_module(module);
}

py::list to_python(const std::vector<stablehlo::Type>& types) {
  py::list out;
  for (const stablehlo::Type& type : types) {
    out.append(py::make_tuple(dtype_object(ops::to_scalar_type(type.dtype)), type.dims));
  }
  return out;
}

}  // namespace

void bind_exported(py::module_& m) {
  m.def("_load_module", &load_module, py::arg("name"), py::arg("text"), py::arg("device"),
        py::arg("inputs"), py::arg("kept"), py::arg("outputs"), py::arg("checks"),
        py::arg("draws"));
  m.def("_plain", &dispatch::plain, py::arg("tensor"), py::call_guard<py::gil_scoped_release>());
  m.def(
      "_module_signature",
      [](const std::string& text) {
        const stablehlo::Signature signature = stablehlo::main_signature(text);
        return py::make_tuple(to_python(signature.arguments), to_python(signature.results));
      },
      py::arg("text"),
      "Dtypes and sizes of the arguments and of the results. ValueError: they cannot be read.");
}

}  // namespace torch_tpu::bindings
