// torch.dtype in Python as what it is in C++, and back.
#pragma once

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include "csrc/bindings/bindings.h"

namespace torch_tpu::bindings {

inline c10::ScalarType scalar_type(const py::handle& dtype) {
  if (!THPDtype_Check(dtype.ptr())) throw py::type_error("expected a torch.dtype");
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

inline py::object dtype_object(c10::ScalarType type) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
}

}  // namespace torch_tpu::bindings
