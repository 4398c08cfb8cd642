// Programs over all devices of the process, for torch_tpu.spmd.
#include "csrc/dispatch/sharded/spmd.h"

#include <torch/csrc/Dtype.h>

#include "csrc/bindings/bindings.h"
#include "csrc/dispatch/call/compiler_options.h"
#include "csrc/dispatch/graph/exported.h"
#include "csrc/distributed/collective_module.h"
#include "csrc/ops/check_kind.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/pjrt/topology.h"

namespace torch_tpu::bindings {
namespace {

using dispatch::ShardedModule;
using dispatch::ShardedProgram;
using ProgramPtr = c10::intrusive_ptr<ShardedProgram>;

ProgramPtr compile(const std::string& name, const std::string& text,
                   const std::vector<int>& devices, const py::list& outputs,
                   const std::vector<std::pair<std::string, std::string>>& checks, uint64_t draws,
                   bool checks_differ) {
  ShardedModule module{
      name, dispatch::current_options_line() + text, devices, {}, {}, draws, checks_differ};
  for (const py::handle& item : outputs) {
    const auto [write, dtype] = item.cast<std::pair<int, py::object>>();
    if (!THPDtype_Check(dtype.ptr())) throw py::type_error("expected a torch.dtype");
    module.outputs.push_back({write, reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type});
  }
  for (const auto& [kind, message] : checks) {
    module.checks.push_back({message, ops::check_kind(kind)});
  }
  const py::gil_scoped_release release;
  return c10::make_intrusive<ShardedProgram>(std::move(module));
}

std::string collective_text(const std::string& op, const py::object& dtype,
                            const std::vector<int64_t>& dims,
                            const std::vector<std::vector<int64_t>>& groups,
                            const std::string& reduction) {
  if (!THPDtype_Check(dtype.ptr())) throw py::type_error("expected a torch.dtype");
  distributed::CollectiveModule what;
  what.op = op;
  what.dtype = ops::to_dtype(reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type);
  what.dims = dims;
  what.groups = groups;
  distributed::set_reduction(what, reduction);
  return distributed::collective_module(what);
}

// Attributes that say where devices are: "coords", "core_on_chip" and others, by the plugin.
template <class Devices>
std::vector<pjrt::NamedValues> attributes_of(const Devices& devices) {
  std::vector<pjrt::NamedValues> out;
  for (const auto& device : devices) out.push_back(device.attributes());
  return out;
}

py::bytes compile_for(const pjrt::Topology& topology, const std::string& text, int64_t partitions) {
  std::optional<pjrt::OptimizedProgram> made;
  {
    const py::gil_scoped_release release;
    pjrt::CompileOptions options = pjrt::CompileOptions::topology(partitions);
    options.use_shardy_partitioner = true;
    made = topology.compile(text, options).optimized_program();
  }
  return py::bytes(made ? made->code : std::string());
}

}  // namespace

void bind_spmd(py::module_& m) {
  py::class_<ShardedProgram, ProgramPtr>(m, "_ShardedProgram")
      .def(py::init(&compile), py::arg("name"), py::arg("text"), py::arg("devices"),
           py::arg("outputs"), py::arg("checks"), py::arg("draws"),
           py::arg("checks_differ") = false)
      .def("run", &ShardedProgram::run, py::arg("args"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("from_disk",
                             [](const ShardedProgram& p) {
                               return p.code().origin() != trace::Code::Origin::kCompiled;
                             })
      .def_property_readonly("compile_seconds",
                             [](const ShardedProgram& p) { return p.code().compile_seconds(); })
      .def(
          "optimized",
          [](const ShardedProgram& p) {
            const auto made = p.code().executable().executable().optimized_program();
            return py::bytes(made ? made->code : std::string());
          },
          "The partitioned program as an HloModuleProto with its configuration; may be empty.");
  m.def("_collective_module", &collective_text, py::arg("op"), py::arg("dtype"), py::arg("dims"),
        py::arg("groups"), py::arg("reduction") = "sum",
        "StableHLO of one collective over partitions.");
  m.def(
      "_device_attributes",
      [] { return attributes_of(pjrt::Runtime::get().client().addressable_devices()); },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "_topology_attributes",
      [](const pjrt::Topology& topology) { return attributes_of(topology.devices()); },
      py::arg("topology"), "The same of devices that are not attached.");
  m.def("_compile_sharded_for", &compile_for, py::arg("topology"), py::arg("text"),
        py::arg("partitions"),
        "Partitions a module for devices that are not attached; gives what `optimized` does.");
}

}  // namespace torch_tpu::bindings
