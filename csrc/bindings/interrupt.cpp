// Ctrl-C while a thread of ours waits. CPython only notes a signal; its handler runs when the main
// thread asks, which a wait in C++ has to do by itself. Without a handler of the user's, SIGINT is
// KeyboardInterrupt; any other that raises ends the wait as well.
#include "csrc/bindings/interrupt.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "csrc/base/interrupt.h"
#include "csrc/bindings/bindings.h"
#include "csrc/bindings/python_end.h"

namespace torch_tpu::bindings {
namespace {

// PyTorch and pybind11 take it for the Python error it is.
struct RaisedByHandler final : py::error_already_set, base::Interrupted {};

// The only thread that runs handlers. A Python that was started on another thread has none that
// looks here, and waits as before.
bool on_main_thread() { return ::getpid() == static_cast<pid_t>(::syscall(SYS_gettid)); }

void check_signals() {
  if (!on_main_thread() || !Py_IsInitialized() || python_ends()) return;
  if (PyGILState_GetThisThreadState() == nullptr) return;
  struct Gil {
    const PyGILState_STATE state = PyGILState_Ensure();
    ~Gil() { PyGILState_Release(state); }
  } const gil;
  // While an error is on its way up nothing else may be raised: this may be a destructor.
  if (PyErr_Occurred() != nullptr) return;
  if (PyErr_CheckSignals() != 0) throw RaisedByHandler();
}

}  // namespace

void install_interrupt_check() { base::set_interrupt_check(&check_signals); }

}  // namespace torch_tpu::bindings
