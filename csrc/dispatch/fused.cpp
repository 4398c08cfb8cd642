#include "csrc/dispatch/fused.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "csrc/device/checks.h"
#include "csrc/device/stream.h"
#include "csrc/dispatch/execute.h"
#include "csrc/dispatch/launch.h"
#include "csrc/dispatch/mode.h"
#include "csrc/dispatch/padding.h"
#include "csrc/dispatch/results.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/trace.h"

namespace torch_tpu::dispatch {
namespace {

constexpr size_t kMaxDevices = trace::Ledger::kMaxDevices;

// A device of its own works while the rest of a step is recorded, so it gets that in parts: GPT-2's
// step on an H200 takes 22 ms in five parts, 25 in two and 28 in one. XLA:CPU would compute with
// the cores that record.
constexpr size_t kMaxNodesBeside = 128;

// The bytes: a quarter of the device, where the plugin tells how much that is.
trace::PlannerLimits default_limits(int device) {
  trace::PlannerLimits limits;
  if (!pjrt::Runtime::get().host_addressable()) limits.max_nodes = kMaxNodesBeside;
  if (const int64_t nodes = base::env_fused_max_nodes(); nodes > 0) {
    limits.max_nodes = static_cast<size_t>(nodes);
  }
  limits.min_nodes = std::min(static_cast<size_t>(base::env_fused_min_nodes()), limits.max_nodes);
  const int64_t total = pjrt::Runtime::get().device_memory(device);
  if (const int64_t bytes = base::env_fused_max_bytes(); bytes > 0) {
    limits.max_bytes = bytes;
  } else if (total > 0) {
    limits.max_bytes = total / 4;
  }
  return limits;
}

struct Pending {
  explicit Pending(int device) : planner(default_limits(device)) {}

  std::mutex mutex;  // of what follows
  trace::Segment segment;
  trace::Planner planner;
  // Inputs that a collective still has to deliver, and which node takes them.
  std::vector<std::pair<size_t, trace::PromisePtr>> awaited;

  // Held while a piece of the trace is launched: whoever needs one of its values waits here.
  std::mutex launching;
  trace::Segment spare;  // its arrays are used again
  Launcher launcher;
};

std::array<std::atomic<Pending*>, kMaxDevices> all_pending{};
std::mutex creation;

// Leaked: tensors may be freed by Python objects that outlive static destructors.
Pending& pending_of(int device) {
  auto& slot = all_pending.at(static_cast<size_t>(device));
  if (Pending* known = slot.load(std::memory_order_acquire)) return *known;
  std::lock_guard lock(creation);
  if (slot.load() == nullptr) slot.store(new Pending(device), std::memory_order_release);
  return *slot.load();
}

// Whoever launches may need the GIL, to name a line; so nobody waits for them with it.
std::unique_lock<std::mutex> take_turn(std::mutex& launching) {
  std::unique_lock lock(launching, std::try_to_lock);
  if (!lock.owns_lock()) {
    const WithoutGil released;
    lock.lock();
  }
  return lock;
}

// Waits for what collectives owe to the first `count` nodes. Before the turn to launch is taken: a
// collective of another thread may be what the other ranks are waiting for, and it has to launch.
void await_inputs(Pending& pending, size_t count) {
  while (true) {
    trace::PromisePtr promise;
    {
      std::lock_guard lock(pending.mutex);
      for (const auto& [node, owed] : pending.awaited) {
        if (node < count && !owed->done()) promise = owed;
        if (promise) break;
      }
    }
    if (!promise) return;
    promise->wait();  // errors show when the value is read
  }
}

void forget_awaited(Pending& pending, size_t count) {
  std::erase_if(pending.awaited, [&](const auto& entry) { return entry.first < count; });
  for (auto& entry : pending.awaited) entry.first -= count;
}

// The first `count` pending nodes, or all.
void launch_first(Pending& pending, int device, size_t count, Cut why) {
  pjrt::Runtime::get();  // throws in a forked child, before any lock is taken
  await_inputs(pending, count);
  const auto in_order = take_turn(pending.launching);
  trace::Segment segment;
  {
    std::lock_guard lock(pending.mutex);
    if (pending.segment.nodes.empty()) return;
    if (count >= pending.segment.nodes.size()) {
      segment = std::move(pending.segment);
      pending.segment = std::move(pending.spare);
    } else {
      segment = pending.segment.split(count);
    }
    pending.planner.cut(count);
    if (!pending.awaited.empty()) forget_awaited(pending, std::min(count, segment.nodes.size()));
  }
  base::journal::add_cut(why, static_cast<int64_t>(segment.nodes.size()));
  const auto give_back = [&] {
    segment.clear();
    pending.spare = std::move(segment);
  };
  try {
    pending.launcher.run(segment, device);
  } catch (...) {
    give_back();
    throw;
  }
  give_back();
}

std::atomic<int>& when_cell() {
  static std::atomic<int> cell{static_cast<int>(base::env_fused_compile())};
  return cell;
}

}  // namespace

void record_call(Frame& frame, trace::ProgramPtr program, c10::Stack* stack) {
  Pending& pending = pending_of(frame.device);
  trace::TraceNode node;
  node.line = issue_line();
  uint64_t random[2];
  reserve_random(frame, *program, random);
  c10::SmallVector<trace::ValuePtr, 4> results;
  for (const trace::Program::Output& output : program->outputs) {
    if (!output.defined) continue;
    results.push_back(c10::make_intrusive<trace::DeviceValue>(output.value_dtype, output.base_sizes,
                                                              output.base_strides, frame.device));
  }
  while (true) {
    std::unique_lock lock(pending.mutex);
    if (pending.planner.full()) {
      const size_t count = pending.planner.choose();
      const Cut why = pending.planner.over_budget() ? Cut::kMemoryBudget
                      : pending.planner.repeats()   ? Cut::kRepetition
                                                    : Cut::kMaximumLength;
      lock.unlock();
      launch_first(pending, frame.device, count, why);
      continue;
    }
    trace::Segment& segment = pending.segment;
    node.input = static_cast<uint32_t>(segment.inputs.size());
    node.output = static_cast<uint32_t>(segment.outputs.size());
    node.packs[0] = static_cast<uint32_t>(segment.f32.size());
    node.packs[1] = static_cast<uint32_t>(segment.f64.size());
    node.packs[2] = static_cast<uint32_t>(segment.s64.size());
    node.rng = static_cast<uint32_t>(segment.rng.size());
    for (TensorRef& ref : frame.tensors) {
      if (!ref.is_input) continue;
      if (ref.value && ref.value->awaited() != nullptr) {
        pending.awaited.emplace_back(segment.nodes.size(), ref.value->promise());
      }
      segment.inputs.push_back(std::move(ref.value));
    }
    segment.outputs.insert(segment.outputs.end(), results.begin(), results.end());
    if (!frame.scalars.empty()) frame.pack(segment.f32, segment.f64, segment.s64);
    if (program->draws > 0) segment.rng.insert(segment.rng.end(), {random[0], random[1]});
    pending.planner.add(program->flavor, program->output_bytes);
    node.program = program;
    segment.nodes.push_back(std::move(node));
    break;
  }
  // Outside the lock: the arguments that go may be the last reference to a Python object.
  size_t next = 0;
  place_results(program->outputs, program->numbers, {}, frame, stack,
                [&](const auto&) { return std::move(results[next++]); });
}

void launch_pending(int device, Cut why) {
  const auto& slot = all_pending.at(static_cast<size_t>(device));
  Pending* pending = slot.load(std::memory_order_acquire);
  if (pending != nullptr) launch_first(*pending, device, SIZE_MAX, why);
}

void launch_all(Cut why) {
  for (size_t i = 0; i < kMaxDevices; ++i) launch_pending(static_cast<int>(i), why);
}

base::CompileWhen compile_when() {
  return static_cast<base::CompileWhen>(when_cell().load(std::memory_order_relaxed));
}

void set_compile_when(base::CompileWhen when) { when_cell().store(static_cast<int>(when)); }

trace::PlannerLimits planner_limits(int device) {
  Pending& pending = pending_of(device);
  std::lock_guard lock(pending.mutex);
  return pending.planner.limits();
}

void set_planner_limits(const trace::PlannerLimits& limits) {
  TORCH_CHECK_VALUE(limits.max_nodes >= 2 && limits.max_nodes <= 65536,
                    "max_nodes must be from 2 to 65536, got ", limits.max_nodes);
  TORCH_CHECK_VALUE(limits.min_nodes >= 1 && limits.min_nodes <= limits.max_nodes,
                    "min_nodes must be from 1 to max_nodes, got ", limits.min_nodes);
  TORCH_CHECK_VALUE(limits.max_bytes >= (1 << 20), "max_bytes must be at least 1 MiB, got ",
                    limits.max_bytes);
  launch_all(Cut::kUserFlush);
  const int count = pjrt::Runtime::get().device_count();
  for (int device = 0; device < count; ++device) {
    Pending& pending = pending_of(device);
    std::lock_guard lock(pending.mutex);
    pending.planner.set_limits(limits);
  }
}

void register_fused() {
  register_padding();
  trace::DeviceValue::set_launch([](int device) { launch_pending(device, Cut::kHostRead); });
  device::set_line_text([](const trace::IssueLine& line) {
    const std::string text = describe(line);
    return text.empty() ? text : " at " + text;
  });
  trace::Promise::set_blocking([](const std::function<void()>& wait) {
    const WithoutGil released;
    wait();
  });
  device::set_launch_pending([](int device) { launch_pending(device, Cut::kSynchronize); });
}

}  // namespace torch_tpu::dispatch
