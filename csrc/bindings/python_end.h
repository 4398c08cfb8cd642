// Whether Python is shutting down: who asks for its lock then never gets it.
#pragma once

#include <Python.h>

namespace torch_tpu::bindings {

inline bool python_ends() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace torch_tpu::bindings
