// Devices, memory, streams and generators for torch.tpu. Functions that may wait or start the
// client release the GIL. A device of -1 is the calling thread's current one.
#include <tuple>

#include <ATen/core/CachingHostAllocator.h>

#include "csrc/bindings/bindings.h"
#include "csrc/device/allocator.h"
#include "csrc/device/checks.h"
#include "csrc/device/current.h"
#include "csrc/device/generator.h"
#include "csrc/device/stream.h"
#include "csrc/dispatch/report/profile_collective.h"
#include "csrc/trace/issue_line.h"
#include "csrc/trace/memory_history.h"
#include "csrc/trace/value.h"

namespace torch_tpu::bindings {
namespace {

using device::check_device;
using trace::Ledger;
using NoGil = py::call_guard<py::gil_scoped_release>;

py::dict memory_counts(int64_t index) {
  const trace::MemoryCounts counts = [&] {
    const py::gil_scoped_release no_gil;
    device::launch_pending(check_device(index));
    return Ledger::of(check_device(index)).counts();
  }();
  py::dict result;
  result["current_bytes"] = counts.current_bytes;
  result["peak_bytes"] = counts.peak_bytes;
  result["peak_reserved_bytes"] = counts.peak_reserved_bytes;
  result["total_allocated"] = counts.total_allocated;
  result["total_freed"] = counts.total_freed;
  result["current_values"] = counts.current_values;
  result["peak_values"] = counts.peak_values;
  result["allocations"] = counts.allocations;
  result["frees"] = counts.frees;
  result["out_of_memory"] = counts.out_of_memory;
  return result;
}

// What torch.Stream(stream_id=, device_index=, device_type=) takes.
std::tuple<int64_t, int64_t, int64_t> pack(const c10::Stream& stream) {
  return {stream.id(), stream.device_index(), static_cast<int64_t>(stream.device_type())};
}

void bind_devices(py::module_& m) {
  m.def("_device_count", &device::device_count, NoGil(),
        "Number of devices; 0 when there is no plugin. Never raises.");
  m.def("_set_late_checks", &device::set_late_checks, py::arg("on"),
        "For tests: no violation is known before its call returns.");
  m.def("_current_device", &device::current_device, "The calling thread's device.");
  m.def("_set_device", &device::set_device, py::arg("device"), NoGil(),
        "Sets the calling thread's device.");
  m.def("_exchange_device", &device::exchange_device, py::arg("device"), NoGil(),
        "Sets the calling thread's device (-1: leaves it) and returns the previous one.");
  m.def(
      "_synchronize",
      [](int64_t index) {
        device::synchronize(check_device(index));
        dispatch::profile_settle();
      },
      py::arg("device") = -1, NoGil(),
      "Waits for all work issued on the device; raises the first error it failed with.");
  m.def(
      "_idle", [](int64_t index) { return device::idle(check_device(index)); },
      py::arg("device") = -1, NoGil(), "Whether all work issued on the device is done.");
}

void bind_memory(py::module_& m) {
  m.def("_memory_counts", &memory_counts, py::arg("device") = -1,
        "dict of counts of live device values: current_bytes, peak_bytes, peak_reserved_bytes,\n"
        "total_allocated,\n"
        "total_freed, current_values, peak_values, allocations, frees, out_of_memory.");
  m.def(
      "_reset_peak_memory", [](int64_t index) { Ledger::of(check_device(index)).reset_peak(); },
      py::arg("device") = -1, "Sets the peak counts to the current ones.");
  m.def(
      "_reset_accumulated_memory",
      [](int64_t index) { Ledger::of(check_device(index)).reset_accumulated(); },
      py::arg("device") = -1, "Sets the accumulated counts to 0.");
  m.def(
      "_set_memory_limit",
      [](int64_t bytes, int64_t index) {
        TORCH_CHECK_VALUE(bytes >= 0, "The memory limit must not be negative, got ", bytes);
        Ledger::of(check_device(index)).set_limit(bytes);
      },
      py::arg("bytes"), py::arg("device") = -1,
      "Most bytes of device memory this process may hold; 0 for no limit.");
  m.def(
      "_memory_limit", [](int64_t index) { return Ledger::of(check_device(index)).limit(); },
      py::arg("device") = -1, "The limit set, in bytes; 0 for none.");
  m.def(
      "_mem_get_info",
      [](int64_t index) {
        const int checked = check_device(index);
        return std::pair(device::free_memory(checked), device::total_memory(checked));
      },
      py::arg("device") = -1, NoGil(),
      "(free, total) bytes of the device; 0 where unknown. Starts the client.");
}

py::list to_python(const std::vector<trace::MemoryEvent>& events) {
  py::list out;
  for (const trace::MemoryEvent& event : events) {
    out.append(py::make_tuple(event.takes, event.address, event.bytes, event.device, event.time_us,
                              trace::describe(event.line)));
  }
  return out;
}

void bind_memory_history(py::module_& m) {
  m.def(
      "_memory_history_start",
      [](size_t max_events) { trace::MemoryHistory::get().start(max_events); },
      py::arg("max_events"), "Notes who takes and frees device memory; 0: no more.");
  m.def("_memory_history_on", &trace::MemoryHistory::on);
  m.def(
      "_memory_events", [] { return to_python(trace::MemoryHistory::get().events()); },
      "(takes, address, bytes, device, microseconds, line) of the newest events.");
  m.def(
      "_memory_alive", [] { return to_python(trace::MemoryHistory::get().alive()); },
      "The same of what was made since the start and is alive.");
  m.def(
      "_host_memory_stats",
      [] {
        const at::HostStats stats =
            static_cast<at::HostAllocator*>(device::pinned_allocator())->get_stats();
        py::dict out;
        for (const auto& [name, stat] : {std::pair("active_requests", &stats.active_requests),
                                         std::pair("active_bytes", &stats.active_bytes),
                                         std::pair("allocations", &stats.allocations),
                                         std::pair("allocated_bytes", &stats.allocated_bytes)}) {
          py::dict one;
          one["current"] = stat->current;
          one["peak"] = stat->peak;
          one["allocated"] = stat->allocated;
          one["freed"] = stat->freed;
          out[name] = one;
        }
        out["num_host_alloc"] = stats.num_host_alloc;
        out["num_host_free"] = stats.num_host_free;
        return out;
      },
      "Counts of pinned host memory.");
  m.def(
      "_reset_host_memory_stats",
      [](bool peak) {
        auto* host = static_cast<at::HostAllocator*>(device::pinned_allocator());
        peak ? host->reset_peak_stats() : host->reset_accumulated_stats();
      },
      py::arg("peak"), "Sets the peaks, or the totals, back.");
}

void bind_streams(py::module_& m) {
  m.def(
      "_current_stream",
      [](int64_t index) { return pack(device::current_stream(check_device(index))); },
      py::arg("device") = -1, "(stream_id, device_index, device_type) of the current stream.");
  m.def(
      "_default_stream",
      [](int64_t index) { return pack(device::default_stream(check_device(index))); },
      py::arg("device") = -1, "(stream_id, device_index, device_type) of the default stream.");
  m.def(
      "_set_stream",
      [](int64_t stream_id, int64_t index) {
        const c10::Device on = device::make_device(check_device(index));
        return pack(device::exchange_stream(c10::Stream(c10::Stream::UNSAFE, on, stream_id)));
      },
      py::arg("stream_id"), py::arg("device") = -1,
      "Sets the device's current stream for this thread; returns the previous one, packed.");
}

void bind_generators(py::module_& m) {
  m.def(
      "_default_generator",
      [](int64_t index) { return device::default_generator(check_device(index)); },
      py::arg("device") = -1, "The torch.Generator the device's random ops draw from.");
  m.def("_manual_seed_all", &device::seed_all, py::arg("seed"),
        "Seeds the default generators of all devices; starts nothing.");
}

}  // namespace

void bind_device(py::module_& m) {
  bind_devices(m);
  bind_memory(m);
  bind_memory_history(m);
  bind_streams(m);
  bind_generators(m);
}

}  // namespace torch_tpu::bindings
