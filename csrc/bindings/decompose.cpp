// PyTorch's Python decompositions for the dispatcher. The table lives in
// torch_tpu/_decompositions.py and is imported when the first op without a lowering is met. And
// what its Meta kernels in Python want done before they run (torch_tpu/_meta_kernels.py).

#include "csrc/dispatch/tiers/decompose.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include "csrc/bindings/bindings.h"
#include "csrc/dispatch/program/infer.h"

namespace torch_tpu::bindings {
namespace {

// An import that torch.profiler's with_stack does not see: it keeps pointers to the names of the
// code it saw, and a module's own code is freed once it has run. Others' imports it may see.
py::module_ import_unseen(const char* name) {
  PyThreadState* thread = PyThreadState_Get();
  const Py_tracefunc tracer = thread->c_profilefunc;
  if (tracer == nullptr) return py::module_::import(name);
  const auto argument = py::reinterpret_borrow<py::object>(thread->c_profileobj);
  struct Restore {
    Py_tracefunc tracer;
    PyObject* argument;
    ~Restore() {
      const py::error_scope raised;  // kept
      PyEval_SetProfile(tracer, argument);
    }
  } restore{tracer, argument.ptr()};
  PyEval_SetProfile(nullptr, nullptr);
  return py::module_::import(name);
}

py::object table(const char* function) {
  return import_unseen("torch_tpu._decompositions").attr(function);
}

bool has_decomposition(const std::string& name) {
  if (!Py_IsInitialized()) return false;
  py::gil_scoped_acquire gil;
  return table("has")(name).cast<bool>();
}

// Keyword-only arguments by name, the rest by position, as PyTorch calls its own Python kernels.
py::object call(const c10::OperatorHandle& op, c10::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  py::list args;
  py::dict kwargs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    py::object value = torch::jit::toPyObject((*stack)[first + i]);
    if (arguments[i].kwarg_only()) {
      kwargs[py::str(arguments[i].name())] = value;
    } else {
      args.append(value);
    }
  }
  return table("run")(dispatch::full_name(op), args, kwargs);
}

void put_results(const c10::OperatorHandle& op, const py::object& result, c10::Stack* stack) {
  const auto& returns = op.schema().returns();
  const size_t count = op.schema().arguments().size();
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  if (returns.size() == 1) {
    stack->push_back(torch::jit::toIValue(result, returns[0].type()));
    return;
  }
  const auto items = result.cast<py::sequence>();
  for (size_t i = 0; i < returns.size(); ++i) {
    stack->push_back(torch::jit::toIValue(items[i], returns[i].type()));
  }
}

void run_decomposition(const c10::OperatorHandle& op, c10::Stack* stack) {
  py::gil_scoped_acquire gil;
  try {
    put_results(op, call(op, stack), stack);
  } catch (py::error_already_set& error) {
    // An interrupt or exit is the user's; what a decomposition raises decides only the tier.
    if (!error.matches(PyExc_Exception)) throw;
    const std::string text = py::str(error.value());
    throw dispatch::DecompositionFailed(text);
  } catch (const py::cast_error& error) {
    throw dispatch::DecompositionFailed(error.what());
  }
}

// Saves time and decides nothing: a failure is no reason to fail.
void prepare_meta_kernels() {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  try {
    import_unseen("torch_tpu._meta_kernels").attr("prepare")();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
  }
}

// See torch_tpu/_meta_kernels.py. Not a Python function: Dynamo would trace it.
py::cpp_function call_plainly(py::function function, py::function guarded, const py::str& slot) {
  return [function, guarded, slot](const py::args& args, const py::kwargs& kwargs) -> py::object {
    const auto modules = py::reinterpret_borrow<py::dict>(PyImport_GetModuleDict());
    if (!modules.contains("torch._dynamo")) return function(*args, **kwargs);
    if (py::hasattr(function, slot)) py::delattr(function, slot);
    return guarded(*args, **kwargs);
  };
}

}  // namespace

void bind_decompose(py::module_& m) {
  dispatch::set_before_first_meta(&prepare_meta_kernels);
  dispatch::set_decomposer({&has_decomposition, &run_decomposition});
  m.def(
      "_decomposed_ops",
      [] {
        std::vector<std::string> names;
        for (const std::string& name : dispatch::decomposed_ops()) names.push_back(name);
        return names;
      },
      "Names of the ops that ran by PyTorch's Python decompositions.");
  m.def(
      "_call_plainly", &call_plainly, py::arg("function"), py::arg("guarded"), py::arg("slot"),
      "Calls `function` until torch._dynamo is imported; then forgets the slot that holds this and "
      "calls `guarded`.");
  m.def("_reset_decomposed_ops", &dispatch::reset_decomposed_ops, "Forgets those names.");
}

}  // namespace torch_tpu::bindings
