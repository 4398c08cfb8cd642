// The plugin and the client: whether there is one, starting it, what it is; the environment table.
#include "csrc/pjrt/runtime.h"

#include "csrc/base/env.h"
#include "csrc/bindings/bindings.h"
#include "csrc/device/allocator.h"
#include "csrc/device/current.h"

namespace torch_tpu::bindings {
namespace {

using pjrt::Runtime;

py::object to_python(const pjrt::NamedValue& value) {
  return std::visit([](const auto& v) -> py::object { return py::cast(v); }, value);
}

py::dict to_python(const pjrt::NamedValues& values) {
  py::dict result;
  for (const auto& [name, value] : values) result[py::str(name)] = to_python(value);
  return result;
}

py::dict device_properties(int64_t index) {
  const int device = device::check_device(index);
  const Runtime* runtime = nullptr;
  int64_t total = 0;
  {
    py::gil_scoped_release no_gil;  // may start the client
    runtime = &Runtime::get();
    total = device::total_memory(device);
  }
  const pjrt::Client& client = runtime->client();
  const pjrt::Plugin& plugin = client.plugin();
  const pjrt::Device& info = client.addressable_devices().at(static_cast<size_t>(device));
  py::dict result;
  result["name"] = info.debug_string();
  result["kind"] = info.kind();
  result["id"] = info.id();
  result["process_index"] = info.process_index();
  result["platform"] = client.platform_name();
  result["platform_kind"] = pjrt::to_string(runtime->kind());
  result["platform_version"] = client.platform_version();
  result["plugin_path"] = plugin.path();
  result["api_version"] = pjrt::api_version_string(runtime->api());
  result["stablehlo_version"] = plugin.attribute_string("stablehlo_current_version");
  result["total_memory"] = total;
  result["attributes"] = to_python(info.attributes());
  return result;
}

py::list env_table() {
  py::list rows;
  for (const base::EnvVar& row : base::env_table()) {
    py::dict entry;
    entry["name"] = row.name;
    entry["type"] = row.type;
    entry["allowed"] = row.allowed;
    entry["default"] = row.default_value;
    entry["doc"] = row.doc;
    rows.append(entry);
  }
  return rows;
}

// What is wrong with the variables as they are set now.
std::vector<std::string> env_problems() {
  std::vector<std::string> out;
  const auto check = [&](auto... accessors) {
    const auto one = [&](auto accessor) {
      try {
        static_cast<void>(accessor());
      } catch (const std::invalid_argument& error) {
        out.emplace_back(error.what());
      }
    };
    (one(accessors), ...);
  };
  using namespace base;
  check(env_plugin, env_mode, env_cpu_devices, env_plugin_log_level, env_fallback, env_debug_nans,
        env_memory_limit, env_dump, env_cache_size, env_fused_compile, env_fused_max_nodes,
        env_fused_min_nodes, env_fused_max_bytes, env_compile_threads, env_compile_notice,
        env_log_compiles, env_explain, env_cache_dir, env_cache_bytes, env_packs, env_flight,
        env_flight_size);
  return out;
}

}  // namespace

void bind_runtime(py::module_& m) {
  m.def(
      "_init", [] { Runtime::get(); }, py::call_guard<py::gil_scoped_release>(),
      "Starts the client if it is not running; raises with what to do when it cannot.");
  m.def(
      "_is_initialized", [] { return Runtime::started() && !Runtime::in_bad_fork(); },
      "Whether the client is running in this process.");
  m.def("_is_in_bad_fork", &Runtime::in_bad_fork,
        "Whether this process was forked after the client started, and so cannot use it.");
  m.def("_is_available", &Runtime::available, py::call_guard<py::gil_scoped_release>(),
        "Whether a plugin is found; starts nothing.");
  m.def("_set_search_dirs", &pjrt::set_search_dirs, py::arg("dirs"),
        "Sets the folders in which plugins are looked for.");
  m.def("_search_dirs", &pjrt::search_dirs, "The folders in which plugins are looked for.");
  m.def(
      "_device_properties", &device_properties, py::arg("device") = -1,
      "dict with name, kind, id, process_index, platform, platform_kind, platform_version,\n"
      "plugin_path, api_version, stablehlo_version, total_memory, attributes. Starts the client.");
  m.def("_env_table", &env_table,
        "list of dicts (name, type, allowed, default, doc), one per TORCH_TPU_* variable.");
  m.def("_env_problems", &env_problems, "What is wrong with the TORCH_TPU_* variables, by line.");
}

}  // namespace torch_tpu::bindings
