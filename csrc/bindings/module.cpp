// The native module. Importing it registers the device and starts nothing.
#include <c10/util/Exception.h>
#include <torch/version.h>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/interrupt.h"
#include "csrc/device/register.h"

namespace {

// Read back from the library file when it cannot be loaded: kMarker's text must stay in one piece.
#define TORCH_TPU_MARKER "torch_tpu was built for torch "
constexpr char kMarker[] = TORCH_TPU_MARKER TORCH_VERSION;

// C++ errors become the Python ones PyTorch itself raises, without the C++ backtrace. What is not
// caught here (std::exception, pybind11's own) goes on to pybind11's translator.
void translate(std::exception_ptr error) {
  const auto raise = [](PyObject* type, const c10::Error& e) {
    PyErr_SetString(type, e.what_without_backtrace());
  };
  try {
    if (error) std::rethrow_exception(error);
  } catch (const c10::OutOfMemoryError& e) {
    raise(pybind11::module_::import("torch").attr("OutOfMemoryError").ptr(), e);
  } catch (const c10::IndexError& e) {
    raise(PyExc_IndexError, e);
  } catch (const c10::ValueError& e) {
    raise(PyExc_ValueError, e);
  } catch (const c10::TypeError& e) {
    raise(PyExc_TypeError, e);
  } catch (const c10::LinAlgError& e) {
    raise(pybind11::module_::import("torch._C").attr("_LinAlgError").ptr(), e);
  } catch (const c10::NotImplementedError& e) {
    raise(PyExc_NotImplementedError, e);
  } catch (const c10::Error& e) {
    raise(PyExc_RuntimeError, e);
  }
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  using namespace torch_tpu;
  pybind11::register_local_exception_translator(translate);
  device::register_backend();
  m.attr("_torch_version") = &kMarker[sizeof(TORCH_TPU_MARKER) - 1];
  bindings::install_interrupt_check();
  bindings::bind_runtime(m);
  bindings::bind_device(m);
  bindings::bind_dispatch(m);
  bindings::bind_fused(m);
  bindings::bind_decompose(m);
  bindings::bind_explain(m);
  bindings::bind_cache(m);
  bindings::bind_compiled(m);
  bindings::bind_exported(m);
  bindings::bind_regions(m);
  bindings::bind_foreign(m);
  bindings::bind_topology(m);
  bindings::bind_distributed(m);
  bindings::bind_spmd(m);
}
