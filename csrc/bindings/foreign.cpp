// Kernels in JAX and Pallas, for torch_tpu/pallas: Python gives the StableHLO of a call that has no
// program yet, and defines the op of a gradient when that is first needed.
#include "csrc/dispatch/foreign/foreign.h"

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "csrc/bindings/bindings.h"
#include "csrc/ops/target.h"

namespace torch_tpu::bindings {
namespace {

using stablehlo::DType;
using stablehlo::Type;
using TypeText = std::pair<std::string, std::vector<int64_t>>;

DType dtype_of(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(DType::kC128); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (stablehlo::dtype_name(dtype) == name) return dtype;
  }
  throw std::invalid_argument("no element type is called " + name);
}

TypeText text_of(const Type& type) {
  return {std::string(stablehlo::dtype_name(type.dtype)), type.dims};
}

std::vector<Type> types_of(const std::vector<TypeText>& texts) {
  std::vector<Type> out;
  for (const auto& [dtype, dims] : texts) out.emplace_back(dtype_of(dtype), dims);
  return out;
}

py::object describe_tensor(const stablehlo::Value& value) {
  return value.defined() ? py::cast(text_of(value.type())) : py::none();
}

// (kind, value): a tensor's type, a list of them, a traced number, or a Python value.
py::tuple describe(const ops::Argument& argument) {
  if (argument.is_list && (!argument.tensors.empty() || argument.scalars.empty())) {
    py::list items;
    for (const auto& tensor : argument.tensors) items.append(describe_tensor(tensor));
    return py::make_tuple("tensors", items);
  }
  if (!argument.tensors.empty()) {
    return py::make_tuple("tensor", describe_tensor(argument.tensors[0]));
  }
  if (argument.known) {
    switch (argument.scalar_types.at(0)) {
      case c10::ScalarType::Long:
        return py::make_tuple("static", argument.known->integer());
      case c10::ScalarType::UInt64:
        return py::make_tuple("static", argument.known->bits());
      case c10::ScalarType::Bool:
        return py::make_tuple("static", *argument.known != 0);
      default:
        return py::make_tuple("static", argument.known->to_double());
    }
  }
  if (!argument.scalars.empty()) return py::make_tuple("traced", py::none());
  return py::make_tuple("static", torch::jit::toPyObject(argument.value));
}

const char* platform() {
  switch (ops::target().compiler) {
    case ops::Compiler::kCpu:
      return "cpu";
    case ops::Compiler::kCuda:
      return "cuda";
    case ops::Compiler::kTpu:
      return "tpu";
  }
  return "tpu";
}

const char* precision() {
  switch (ops::target().f32_precision) {
    case stablehlo::Precision::kHighest:
      return "highest";
    case stablehlo::Precision::kHigh:
      return "high";
    case stablehlo::Precision::kDefault:
      return "default";
  }
  return "highest";
}

// Python objects that are let go of where nobody may hold the GIL.
std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            if (!Py_IsInitialized()) return;
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

// A Python error becomes a RuntimeError with its text: it may be raised by a thread of autograd.
[[noreturn]] void raise_plainly(py::error_already_set& error) {
  if (!error.matches(PyExc_Exception)) throw;
  const std::string text = py::str(error.value());
  if (error.matches(PyExc_TypeError)) TORCH_CHECK_TYPE(false, text);
  if (error.matches(PyExc_ValueError)) TORCH_CHECK_VALUE(false, text);
  TORCH_CHECK(false, text);
}

ops::ForeignLowering lowering_by(py::object lower) {
  return [lower = shared(std::move(lower))](const std::vector<ops::Argument>& arguments) {
    const py::gil_scoped_acquire gil;
    auto function = std::make_shared<stablehlo::ForeignFunction>();
    try {
      py::list described;
      for (const ops::Argument& argument : arguments) described.append(describe(argument));
      const auto made = (*lower)(described, platform(), precision()).cast<py::tuple>();
      function->symbol = made[0].cast<std::string>();
      function->text = made[1].cast<std::string>();
      function->operands = types_of(made[2].cast<std::vector<TypeText>>());
      function->results = types_of(made[3].cast<std::vector<TypeText>>());
    } catch (py::error_already_set& error) {
      raise_plainly(error);
    }
    return ops::ForeignPtr(std::move(function));
  };
}

std::function<std::string()> gradient_by(py::object define) {
  if (define.is_none()) return {};
  return [define = shared(std::move(define))] {
    const py::gil_scoped_acquire gil;
    try {
      return (*define)().cast<std::string>();
    } catch (py::error_already_set& error) {
      raise_plainly(error);
    }
  };
}

}  // namespace

void bind_foreign_call(py::module_& m);  // foreign_call.cpp

void bind_foreign(py::module_& m) {
  bind_foreign_call(m);
  m.def(
      "_register_foreign",
      [](std::string name, std::vector<std::string> traced, py::object lower, py::object gradient,
         bool gradient_keeps_outputs) {
        dispatch::register_foreign({std::move(name), std::move(traced),
                                    lowering_by(std::move(lower)), gradient_by(std::move(gradient)),
                                    gradient_keeps_outputs});
      },
      py::arg("name"), py::arg("traced"), py::arg("lower"), py::arg("gradient"),
      py::arg("gradient_keeps_outputs"),
      "Kernels on this device for an op whose StableHLO `lower` gives.");
  m.def("_set_foreign_variant", &ops::set_foreign_variant, py::arg("text"),
        "What else the StableHLO depends on: another text asks for it again.");
  m.def("_forget_foreign", &dispatch::forget_foreign, py::arg("name"), "Takes those kernels away.");
}

}  // namespace torch_tpu::bindings
