// Modes, programs, fallbacks and zero-copy transfers for Python.

#include <chrono>
#include <thread>

#include "csrc/base/gil.h"
#include "csrc/bindings/bindings.h"
#include "csrc/bindings/python_line.h"
#include "csrc/cache/fused_cache.h"
#include "csrc/cache/program_cache.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/compiler_options.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/call/op.h"
#include "csrc/dispatch/call/target.h"
#include "csrc/dispatch/change_mode.h"
#include "csrc/dispatch/report/causes.h"
#include "csrc/dispatch/report/sync_debug.h"
#include "csrc/dispatch/run/scalar_pool.h"
#include "csrc/dispatch/tiers/fallback.h"
#include "csrc/ops/table.h"
#include "csrc/pjrt/code_room.h"

namespace torch_tpu::bindings {
namespace {

// As an op sees it: without the GIL, on the calling thread or on a new one. `attached`: one that
// Python knows but that runs no Python code, like autograd's.
std::string issue_line(const std::string& thread) {
  dispatch::IssueLine line;
  {
    py::gil_scoped_release release;
    const auto capture = [&line] { line = dispatch::issue_line(); };
    if (thread == "calling") {
      capture();
    } else {
      std::thread([&] {
        if (thread == "attached") {
          py::gil_scoped_acquire gil;
          py::gil_scoped_release as_autograd_does;
          capture();
        } else {
          capture();
        }
      }).join();
    }
  }
  return dispatch::describe(line);
}

double issue_line_cost(int64_t calls) {
  py::gil_scoped_release release;
  int64_t empty = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) empty += dispatch::issue_line().code == nullptr;
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
  return empty > 0 ? -1.0 : spent.count() / static_cast<double>(calls);
}

py::dict program_stats() {
  const cache::CacheStats stats = cache::ProgramCache::get().stats();
  py::dict out;
  out["hits"] = stats.hits;
  out["misses"] = stats.misses;
  out["programs"] = stats.programs;
  out["evictions"] = stats.evictions;
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

// Not PyGILState_Check: that says yes on every thread once there is a second interpreter.
void* release_gil() noexcept {
  if (!Py_IsInitialized()) return nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  PyThreadState* current = PyThreadState_GetUnchecked();
#else
  PyThreadState* current = _PyThreadState_UncheckedGet();
#endif
  const bool ours = current != nullptr && current == PyGILState_GetThisThreadState();
  return ours ? PyEval_SaveThread() : nullptr;
}

void take_gil(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

}  // namespace

void bind_dispatch(py::module_& m) {
  dispatch::register_ops();
  trace::set_line_hooks({&capture_line, &describe_line, &current_line});
  dispatch::set_user_line(&user_line);
  base::set_gil_hooks({&release_gil, &take_gil});
  m.def("_issue_line", &issue_line, py::arg("thread") = "calling",
        "The line an op issued here belongs to; thread: calling, attached or native.");
  m.def("_issue_line_cost", &issue_line_cost, py::arg("calls"),
        "Nanoseconds to take the line of an op, or -1 where there is none.");
  m.def("_pinned_code", &pinned_code, "How many code objects are kept alive for those lines.");
  m.def(
      "_set_mode",
      [](const std::string& text) { dispatch::change_mode(base::parse_mode(text, "mode")); },
      py::arg("mode"), py::call_guard<py::gil_scoped_release>(),
      "Sets the mode of the process: debug, strict or fused.");
  m.def("_get_mode", [] { return base::to_string(dispatch::mode()); }, "The mode of the process.");
  m.def("_set_compiler_options", &dispatch::change_compiler_options, py::arg("options"),
        py::call_guard<py::gil_scoped_release>(),
        "XLA options of the calls from here on, by name: str, bool, int or float.");
  m.def("_compiler_options", &dispatch::compiler_options, "Those that were set.");
  m.def(
      "_set_sync_debug",
      [](int level) { dispatch::set_sync_debug(static_cast<dispatch::SyncDebug>(level)); },
      py::arg("level"), "When the host waits for the device: 0 nothing, 1 warns, 2 raises.");
  m.def("_get_sync_debug", [] { return static_cast<int>(dispatch::sync_debug()); });
  m.def("_set_debug_nans", &dispatch::set_debug_nans, py::arg("on"),
        "Whether Debug Eager stops at the first NaN or Inf.");
  m.def("_get_debug_nans", &dispatch::debug_nans, "Whether Debug Eager stops at NaN and Inf.");
  m.def(
      "_set_attention_form", &dispatch::set_attention_form, py::arg("form"), py::arg("block") = 0,
      "For tests: the form attention takes (auto, plain, blocks, cudnn), and the side of blocks.");
  m.def("_program_stats", &program_stats, "Counts of the program cache.");
  m.def(
      "_reset_program_stats", [] { cache::ProgramCache::get().reset_stats(); },
      "Sets the counts of the program cache to zero.");
  m.def(
      "_clear_programs",
      [] {
        cache::ProgramCache::get().clear();
        cache::FusedCache::get().clear();
        dispatch::clear_scalar_pool();
      },
      "Drops all compiled programs.");
  m.def(
      "_mappings",
      [] {
        const pjrt::Mappings now = pjrt::count_mappings();
        return std::pair(now.used, now.limit);
      },
      "Memory mappings of this process and how many it may have (0: no bound).");
  m.def("_set_mapping_limit", &pjrt::set_mapping_limit, py::arg("limit"),
        "For tests: another bound of the mappings; 0 takes the system's.");
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
