// Modes, programs, fallbacks and zero-copy transfers for Python.

#include "csrc/bindings/bindings.h"
#include "csrc/cache/program_cache.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/fallback.h"
#include "csrc/dispatch/mode.h"
#include "csrc/dispatch/op.h"
#include "csrc/dispatch/scalar_pool.h"
#include "csrc/ops/table.h"

namespace torch_tpu::bindings {
namespace {

bool is_library_frame(const std::string& file) {
  return file.find("/torch/") != std::string::npos ||
         file.find("/torch_tpu/") != std::string::npos || file.rfind("<frozen", 0) == 0;
}

// "file.py:12 in train" of the innermost frame that is not PyTorch's or ours.
std::string python_location() {
  if (!Py_IsInitialized()) return "";
  py::gil_scoped_acquire gil;
  PyFrameObject* frame = PyEval_GetFrame();  // borrowed; null on autograd's threads
  if (frame == nullptr) return "";
  Py_INCREF(frame);
  std::string fallback;
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const auto file = py::reinterpret_borrow<py::str>(code->co_filename).cast<std::string>();
    const auto name = py::reinterpret_borrow<py::str>(code->co_name).cast<std::string>();
    const std::string text =
        file + ":" + std::to_string(PyFrame_GetLineNumber(frame)) + " in " + name;
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
    if (fallback.empty()) fallback = text;
    if (!is_library_frame(file)) {
      Py_XDECREF(frame);
      return text;
    }
  }
  return fallback;
}

py::dict program_stats() {
  const cache::CacheStats stats = cache::ProgramCache::get().stats();
  py::dict out;
  out["hits"] = stats.hits;
  out["misses"] = stats.misses;
  out["programs"] = stats.programs;
  out["compiles"] = stats.compiles;
  out["evictions"] = stats.evictions;
  out["compile_seconds"] = stats.compile_seconds;
  return out;
}

py::dict fallback_counts() {
  py::dict out;
  for (const auto& [name, count] : dispatch::fallback_counts()) {
    out[py::str(name)] = py::make_tuple(count.calls, count.seconds);
  }
  return out;
}

base::Fallback parse_fallback(const std::string& text) {
  for (auto what : {base::Fallback::kWarn, base::Fallback::kError, base::Fallback::kSilent}) {
    if (text == base::to_string(what)) return what;
  }
  throw py::value_error("fallback must be 'warn', 'error' or 'silent', got '" + text + "'");
}

}  // namespace

void bind_dispatch(py::module_& m) {
  dispatch::register_ops();
  dispatch::set_location_hook(&python_location);
  m.def(
      "_set_mode",
      [](const std::string& text) { dispatch::set_mode(base::parse_mode(text, "mode")); },
      py::arg("mode"), "Sets the mode of the process: debug, strict or fused.");
  m.def("_get_mode", [] { return base::to_string(dispatch::mode()); }, "The mode of the process.");
  m.def("_set_debug_nans", &dispatch::set_debug_nans, py::arg("on"),
        "Whether Debug Eager stops at the first NaN or Inf.");
  m.def("_get_debug_nans", &dispatch::debug_nans, "Whether Debug Eager stops at NaN and Inf.");
  m.def("_program_stats", &program_stats, "Counts of the program cache.");
  m.def(
      "_reset_program_stats", [] { cache::ProgramCache::get().reset_stats(); },
      "Sets the counts of the program cache to zero.");
  m.def(
      "_clear_programs",
      [] {
        cache::ProgramCache::get().clear();
        dispatch::clear_scalar_pool();
      },
      "Drops all compiled programs.");
  m.def("_fallback_counts", &fallback_counts, "Per op that ran on the CPU: (calls, seconds).");
  m.def("_reset_fallback_counts", &dispatch::reset_fallback_counts, "Forgets the counts.");
  m.def(
      "_set_fallback",
      [](const std::string& text) { dispatch::set_fallback(parse_fallback(text)); },
      py::arg("what"), "What an op without lowering does: warn, error or silent.");
  m.def(
      "_get_fallback", [] { return base::to_string(dispatch::get_fallback()); },
      "What an op without lowering does.");
  m.def(
      "_op_names",
      [] {
        std::vector<std::string> names;
        for (const ops::Entry& entry : ops::table()) names.emplace_back(entry.name);
        return names;
      },
      "The names of the op table's entries.");
  m.def(
      "_op_forms",
      [] {
        py::dict forms;
        for (const auto& [form, entry] : dispatch::op_forms()) forms[py::str(form)] = entry;
        return forms;
      },
      "The op table's entry for each form of an op that it serves.");
  m.def("_from_host_zero_copy", &device::from_host_zero_copy, py::arg("tensor"), py::arg("device"),
        "A tpu tensor that reads the CPU tensor's memory in place where the plugin can.");
  m.def("_to_host_zero_copy", &device::to_host_zero_copy, py::arg("tensor"),
        "A CPU tensor over the memory of a tpu tensor.");
}

}  // namespace torch_tpu::bindings
