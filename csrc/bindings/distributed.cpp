// The c10d backend "tpu" and the flight recorder. The transport comes from Python, where PyTorch
// offers its process groups.
#include <torch/csrc/Dtype.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unistd.h>

#include "csrc/bindings/bindings.h"
#include "csrc/device/current.h"
#include "csrc/distributed/flight.h"
#include "csrc/distributed/key_values.h"
#include "csrc/distributed/process_group.h"
#include "csrc/distributed/processes.h"
#include "csrc/distributed/reduce.h"
#include "csrc/distributed/staging.h"
#include "csrc/distributed/watchdog.h"
#include "csrc/distributed/xla_module.h"
#include "csrc/distributed/xla_program.h"
#include "csrc/distributed/xla_transport.h"
#include "csrc/ops/call.h"
#include "csrc/pjrt/membership.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::bindings {
namespace {

using distributed::Flight;
using distributed::Watchdog;
using distributed::XlaTransport;
using NoGil = py::call_guard<py::gil_scoped_release>;

c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                         int size, double timeout, const std::string& name,
                                         std::vector<int64_t> ranks,
                                         const c10::intrusive_ptr<c10d::Backend>& transport,
                                         std::shared_ptr<XlaTransport> xla) {
  distributed::GroupInfo info;
  info.name = name;
  info.rank = rank;
  info.size = size;
  info.ranks = std::move(ranks);
  info.store = store;
  info.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1000));
  return c10::make_intrusive<distributed::TpuBackend>(std::move(info), transport, std::move(xla));
}

// Who this rank is to the others of its group: machine, process, device, and where the client spans
// processes, the device's global id, else -1.
std::tuple<std::string, int64_t, int, int64_t> whereabouts() {
  const int device = device::current_device();
  int64_t id = -1;
  // A client that has not started and was not asked to span is not started for this.
  if (pjrt::current_membership().processes > 1 || pjrt::Runtime::started()) {
    const pjrt::Client& client = pjrt::Runtime::get().client();
    const auto& here = client.addressable_devices();
    if (client.devices().size() > here.size()) id = here.at(static_cast<size_t>(device)).id();
  }
  return {distributed::machine(), getpid(), device, id};
}

std::string module_text(const std::string& kind, const py::object& dtype,
                        std::vector<stablehlo::Dims> inputs, std::vector<stablehlo::Dims> outputs,
                        int64_t size, const std::string& reduction, int64_t root) {
  if (!THPDtype_Check(dtype.ptr())) throw py::type_error("expected a torch.dtype");
  distributed::XlaCollective what;
  what.dtype = ops::to_dtype(reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type);
  what.inputs = std::move(inputs);
  what.outputs = std::move(outputs);
  what.size = size;
  what.root = root;
  while (distributed::name_of(what.kind) != kind) {
    if (what.kind == distributed::XlaKind::kBroadcast) throw py::value_error(kind);
    what.kind = static_cast<distributed::XlaKind>(static_cast<int>(what.kind) + 1);
  }
  int op = c10d::ReduceOp::SUM;
  while (distributed::name_of(static_cast<c10d::ReduceOp::RedOpType>(op)) != reduction) {
    if (++op >= c10d::ReduceOp::PREMUL_SUM) throw py::value_error(reduction);
  }
  what.reduction = static_cast<c10d::ReduceOp::RedOpType>(op);
  return distributed::xla_module(what);
}

}  // namespace

void bind_distributed(py::module_& m) {
  py::class_<XlaTransport, std::shared_ptr<XlaTransport>>(
      m, "_XlaTransport", "XLA's own collectives, for a group that has devices of one client.")
      .def(py::init([](std::string name, int rank, int device, std::vector<int64_t> devices,
                       bool spans, size_t here) {
             return std::make_shared<XlaTransport>(XlaTransport::Place{
                 std::move(name), rank, device, std::move(devices), spans, here});
           }),
           py::arg("name"), py::arg("rank"), py::arg("device"), py::arg("devices"),
           py::arg("spans"), py::arg("here"))
      .def_property_readonly("place", [](const XlaTransport& xla) {
        const XlaTransport::Place& place = xla.place();
        return std::make_tuple(place.name, place.rank, place.device, place.devices, place.spans,
                               place.here);
      });
  m.def("_xla_module", &module_text, py::arg("kind"), py::arg("dtype"), py::arg("inputs"),
        py::arg("outputs"), py::arg("size"), py::arg("reduction") = "SUM", py::arg("root") = 0,
        "StableHLO of a collective of a group, as that transport runs it; sizes are of one rank.");
  m.def("_whereabouts", &whereabouts, NoGil(),
        "Machine, process, device and, where the client spans processes, its global id, else -1.");
  m.def("_create_process_group", &create, py::arg("store"), py::arg("rank"), py::arg("size"),
        py::arg("timeout"), py::arg("name"), py::arg("ranks"), py::arg("transport"), py::arg("xla"),
        NoGil(),
        "A c10d backend for tpu tensors over one for CPU tensors, and over XLA where given.");
  m.def(
      "_span_processes",
      [](const c10::intrusive_ptr<c10d::Store>& store, int process, int processes) {
        pjrt::set_membership({std::make_shared<distributed::KeyValues>(store), process, processes});
      },
      py::arg("store"), py::arg("process"), py::arg("processes"), NoGil(),
      "Before the client starts: it shall span these processes.");
  m.def(
      "_flight_json", [](const std::string& reason) { return Flight::get().json(reason); },
      py::arg("reason"), NoGil(), "The last collectives of this process, as JSON.");
  m.def(
      "_flight_dump", [](const std::string& reason) { return Flight::get().dump(reason); },
      py::arg("reason"), NoGil(), "Writes them into TORCH_TPU_FLIGHT; the path, or ''.");
  m.def("_flight_clear", [] { Flight::get().clear(); }, "Forgets them.");
  m.def(
      "_flight_set_rank", [](int rank, int size) { Flight::get().set_rank(rank, size); },
      py::arg("rank"), py::arg("world_size"), "Who we are, for the file.");
  m.def("_distributed_refuse_programs", &distributed::set_refuse_programs, py::arg("refuse"),
        "Collectives over XLA go over the host, as where its compiler does not take them.");
  m.def("_distributed_always_copy", &distributed::set_always_copy, py::arg("always"),
        "Collectives go by way of copies on the host, as where device memory is not host memory.");
  m.def(
      "_distributed_stop", [] { Watchdog::get().stop(); }, NoGil(),
      "Ends the watchdog: no call is looked after any more. At the end of the process.");
}

}  // namespace torch_tpu::bindings
