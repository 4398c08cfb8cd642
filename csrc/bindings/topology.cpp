// Compiling for devices that are not attached: a program goes in, what the compiler says comes out.
#include "csrc/pjrt/topology.h"

#include <pybind11/stl.h>

#include "csrc/bindings/bindings.h"
#include "csrc/cache/entry.h"
#include "csrc/cache/fingerprint.h"
#include "csrc/cache/pack.h"
#include "csrc/cache/program_file.h"
#include "csrc/dispatch/graph/compiled.h"
#include "csrc/pjrt/plugin_resolve.h"

namespace torch_tpu::bindings {
namespace {

using pjrt::Topology;

Topology create(const std::string& name, const std::string& plugin) {
  const std::vector<std::string> dirs = pjrt::search_dirs();
  const pjrt::PluginSpec spec = pjrt::resolve_plugin(plugin, dirs);
  return Topology::create(pjrt::Plugin::load(spec.path, spec.kind), name);
}

py::dict memory_dict(const pjrt::CompiledMemoryStats& memory) {
  py::dict result;
  result["code_bytes"] = memory.generated_code_bytes;
  result["argument_bytes"] = memory.argument_bytes;
  result["output_bytes"] = memory.output_bytes;
  result["alias_bytes"] = memory.alias_bytes;
  result["temp_bytes"] = memory.temp_bytes;
  result["host_temp_bytes"] = memory.host_temp_bytes;
  result["peak_bytes"] = memory.peak_bytes;
  return result;
}

py::dict compile(const Topology& topology, const std::string& program, int64_t num_partitions,
                 bool optimized, bool serialized, bool portable) {
  pjrt::Executable executable;
  std::map<std::string, double> costs;
  pjrt::CompiledMemoryStats memory;
  std::optional<pjrt::OptimizedProgram> module;
  std::string code;
  {
    py::gil_scoped_release no_gil;
    executable =
        topology.compile(program, portable ? pjrt::CompileOptions::portable()
                                           : pjrt::CompileOptions::topology(num_partitions));
    costs = executable.cost_analysis();
    memory = executable.memory_stats();
    if (optimized) module = executable.optimized_program();
    if (serialized) code = executable.serialize();
  }
  py::dict result = memory_dict(memory);
  result["flops"] = costs["flops"];
  result["bytes_accessed"] = costs["bytes accessed"];
  result["costs"] = costs;
  if (module) result["optimized"] = py::bytes(module->code);
  if (serialized) result["serialized"] = py::bytes(code);
  return result;
}

// Programs of another machine's: load_module() and torch.compile find them there by their text.
void write_pack(const std::string& path,
                const std::vector<std::pair<std::string, std::string>>& fields,
                const std::vector<std::tuple<std::string, py::bytes, double>>& programs) {
  std::vector<cache::Fingerprint::Field> copied;
  for (const auto& [name, value] : fields) copied.push_back({name, value});
  const cache::Fingerprint fingerprint(std::move(copied));
  std::vector<std::string> entries;
  for (const auto& [text, code, seconds] : programs) {
    const trace::Key key = dispatch::key_of_text(text);
    const std::string blob = cache::encode_code(seconds, std::string_view(code));
    entries.push_back(cache::encode_entry(fingerprint.digest(), {key.data(), key.size()}, blob));
  }
  cache::write_pack(path, fingerprint, entries);
}

}  // namespace

void bind_topology(py::module_& m) {
  py::class_<Topology>(m, "_Topology",
                       "Devices that are not attached, such as \"v5e:2x2\". libtpu can abort the "
                       "process on input it does not expect: use a child process.")
      .def(py::init(&create), py::arg("name"), py::arg("plugin") = "tpu",
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("platform_version", &Topology::platform_version)
      .def_property_readonly("num_devices", [](const Topology& t) { return t.devices().size(); })
      .def_property_readonly("device_kinds",
                             [](const Topology& t) {
                               std::vector<std::string> kinds;
                               for (const auto& device : t.devices())
                                 kinds.push_back(device.kind());
                               return kinds;
                             })
      .def_property_readonly(
          "fingerprint",
          [](const Topology& t) {
            std::vector<std::pair<std::string, std::string>> out;
            const cache::Fingerprint fingerprint = cache::Fingerprint::of(t);
            for (const auto& [name, value] : fingerprint.fields()) out.emplace_back(name, value);
            return out;
          },
          "What its programs depend on in a process that has such devices.")
      .def("compile", &compile, py::arg("program"), py::arg("num_partitions") = 1,
           py::arg("optimized") = false, py::arg("serialized") = false, py::arg("portable") = false,
           "Compiles StableHLO text; a dict of the compiler's figures (flops, bytes_accessed,\n"
           "code_bytes, argument_bytes, output_bytes, alias_bytes, temp_bytes, peak_bytes, and\n"
           "costs, all it says), the bytes of an HloModuleProtoWithConfig as `optimized` and of\n"
           "the executable as `serialized`.");
  m.def("_write_pack", &write_pack, py::arg("path"), py::arg("fingerprint"), py::arg("programs"),
        "Writes (text, executable, seconds) each into a pack for a topology's fingerprint.");
}

}  // namespace torch_tpu::bindings
