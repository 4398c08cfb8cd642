#include "csrc/distributed/xla_program.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/util/Exception.h>

#include "csrc/pjrt/runtime.h"

namespace torch_tpu::distributed {
namespace {

struct HashOfKey {
  size_t operator()(const trace::Key& key) const { return key.hash(); }
};

std::atomic<bool> refuse_programs{false};

// Else all processes compile: compilers of several may work together, and wait for each other.
bool all_are_here(const std::vector<int64_t>& devices) {
  const auto& here = pjrt::Runtime::get().client().addressable_devices();
  return std::all_of(devices.begin(), devices.end(), [&](int64_t id) {
    return std::any_of(here.begin(), here.end(), [id](const auto& d) { return d.id() == id; });
  });
}

}  // namespace

void set_refuse_programs(bool refuse) noexcept { refuse_programs.store(refuse); }

std::shared_ptr<XlaProgram> XlaProgram::get(const XlaCollective& what,
                                            const std::vector<int64_t>& devices) {
  struct Entry {
    std::mutex mutex;
    bool tried = false;
    std::shared_ptr<XlaProgram> program;
  };
  if (refuse_programs.load(std::memory_order_relaxed)) return nullptr;
  static std::mutex mutex;
  static auto* entries =  // leaked: see Runtime
      new std::unordered_map<trace::Key, std::shared_ptr<Entry>, HashOfKey>();
  trace::Key key = what.key();
  key.add(devices);
  std::shared_ptr<Entry> entry;
  {
    std::lock_guard lock(mutex);
    std::shared_ptr<Entry>& found = (*entries)[key];
    if (!found) found = std::make_shared<Entry>();
    entry = found;
  }
  std::lock_guard lock(entry->mutex);  // who comes meanwhile waits for it
  if (!std::exchange(entry->tried, true)) {
    try {
      entry->program.reset(new XlaProgram(what, devices));
    } catch (const pjrt::Error& error) {
      TORCH_WARN("[distributed] a collective goes over the host, the compiler does not take it: ",
                 error.what());
    }
  }
  return entry->program;
}

XlaProgram::XlaProgram(const XlaCollective& what, const std::vector<int64_t>& devices)
    : what_(what),
      code_(std::string("collective_") + name_of(what.kind), xla_module(what), devices,
            what.outputs.size(), all_are_here(devices)) {
  for (const stablehlo::Dims& dims : what.outputs) {
    new_bytes_ += stablehlo::product(dims) * stablehlo::dtype_bytes(what.dtype);
  }
}

std::vector<std::vector<pjrt::Buffer>> XlaProgram::run(
    const std::vector<std::vector<trace::ValuePtr>>& args, bool donate) {
  std::vector<std::vector<PJRT_Buffer*>> raw(args.size());
  for (size_t d = 0; d < args.size(); ++d) {
    for (const trace::ValuePtr& value : args[d]) raw[d].push_back(value->obtain_raw());
    if (!donate) trace::Ledger::of(args[d].at(0)->device()).check_room(new_bytes_);
  }
  const int64_t first = 0;
  const std::span<const int64_t> keep(&first, what_.in_place() && !donate ? 1 : 0);
  std::vector<std::vector<pjrt::Buffer>> results;
  for (dispatch::Outputs& outs : code_.start(raw, keep)) results.push_back(outs.take_from(0));
  return results;
}

}  // namespace torch_tpu::distributed
