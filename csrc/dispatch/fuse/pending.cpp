#include "csrc/dispatch/fuse/pending.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "csrc/base/fork.h"
#include "csrc/base/gil.h"
#include "csrc/device/checks.h"
#include "csrc/device/stream.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/fuse/launch.h"
#include "csrc/dispatch/fuse/padding.h"
#include "csrc/dispatch/record/recorder.h"
#include "csrc/dispatch/run/execute.h"
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
  explicit Pending(int device)
      : planner(default_limits(device)), ledger(trace::Ledger::of(device)) {}

  std::mutex mutex;  // of what follows
  trace::Segment segment;
  trace::Planner planner;
  trace::Ledger& ledger;
  // Inputs that a collective still has to deliver, and which node takes them.
  std::vector<std::pair<size_t, trace::PromisePtr>> awaited;

  // Held while a piece of the trace is launched: whoever needs one of its values waits here.
  std::mutex launching;
  trace::Segment spare;  // its arrays are used again
  Launcher launcher;
};

// Whether an op with checks was ever issued. From then on calls that overwrite a tensor take its
// old elements along: by what was issued before, not by when flags arrive, so every process that
// does the same has the same programs.
std::atomic<bool> checks_met{false};

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

// Of results that take over no other's memory.
int64_t fresh_bytes(const trace::Program& program) {
  int64_t bytes = 0;
  for (const trace::Program::Output& output : program.outputs) {
    if (output.defined && output.input < 0) bytes += output.bytes;
  }
  return bytes;
}

// Whether the results of one more call are within the limit, if all that is pending is alive. Under
// the mutex.
inline bool has_room(const Pending& pending, const trace::Program& program) {
  const int64_t limit = pending.ledger.limit();
  if (limit == 0) [[likely]]
    return true;
  const int64_t held = pending.ledger.counts().current_bytes + pending.planner.bytes();
  return held + fresh_bytes(program) <= limit;
}

// Whoever launches may need the GIL, to name a line; so nobody waits for them with it.
std::unique_lock<std::mutex> take_turn(std::mutex& launching) {
  std::unique_lock lock(launching, std::try_to_lock);
  if (!lock.owns_lock()) {
    const base::WithoutGil released;
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

struct Launched {
  std::exception_ptr error;  // of a call that this thread issued
  bool error_is_no_room = false;
  std::exception_ptr no_room;  // why some calls are left to be run again
};

// Tells each thread of its own calls.
void share_out(const std::vector<Launcher::Failure>& failures, Launched& launched) {
  for (const Launcher::Failure& failure : failures) {
    if (failure.thread != trace::this_thread()) {
      device::note_error(failure.thread, failure.error);
    } else if (!launched.error) {
      launched.error = failure.error;
      launched.error_is_no_room = failure.no_room;
    }
  }
}

// Moves the first `count` pending nodes, or all, out of the trace. False when there are none. Under
// the turn to launch.
bool cut(Pending& pending, size_t count, trace::Segment& segment) {
  std::lock_guard lock(pending.mutex);
  if (pending.segment.nodes.empty()) return false;
  if (count >= pending.segment.nodes.size()) {
    segment = std::move(pending.segment);
    pending.segment = std::move(pending.spare);
  } else {
    segment = pending.segment.split(count);
  }
  pending.planner.cut(count);
  if (!pending.awaited.empty()) forget_awaited(pending, segment.nodes.size());
  return true;
}

// The first `count` pending nodes, or all.
Launched launch_first(Pending& pending, int device, size_t count, Cut why) {
  pjrt::Runtime::get();  // throws in a forked child, before any lock is taken
  await_inputs(pending, count);
  const auto in_order = take_turn(pending.launching);
  pending.launcher.retry(device);
  if (trace::Segment segment; cut(pending, count, segment)) {
    base::journal::add_cut(why, static_cast<int64_t>(segment.nodes.size()));
    pending.launcher.run(segment, device);
    segment.clear();
    pending.spare = std::move(segment);
  }
  const std::vector<Launcher::Failure> failures = pending.launcher.take_failures();
  Launched out;
  if (!failures.empty()) share_out(failures, out);
  out.no_room = pending.launcher.no_room();
  return out;
}

std::atomic<int>& when_cell() {
  static std::atomic<int> cell{static_cast<int>(base::env_fused_compile())};
  return cell;
}

}  // namespace

bool issue_call(Frame& frame, const trace::ProgramPtr& program, Results& placed) {
  if (base::in_bad_fork()) [[unlikely]]
    base::throw_bad_fork();  // the lock below may be one that nobody gives back
  Pending& pending = pending_of(frame.device);
  trace::TraceNode node;
  node.line = issue_line();
  node.thread = trace::this_thread();
  node.reports = trace::Flags::reports();
  c10::SmallVector<trace::ValuePtr, 4> results;
  for (const trace::Program::Output& output : program->outputs) {
    if (!output.defined) continue;
    results.push_back(c10::make_intrusive<trace::DeviceValue>(output.value_dtype, output.base_sizes,
                                                              output.base_strides, frame.device));
  }
  {
    std::lock_guard lock(pending.mutex);
    if (pending.planner.full() || !has_room(pending, *program)) return false;
    uint64_t random[2];
    reserve_random(frame, *program, random);
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
  }
  if (!program->checks.empty()) checks_met.store(true, std::memory_order_relaxed);
  // Outside the lock: the arguments that go may be the last reference to a Python object.
  size_t next = 0;
  place_results(program->outputs, program->numbers, {}, frame, placed,
                [&](const auto&) { return std::move(results[next++]); });
  return true;
}

void make_room(int device, const trace::Program& program) {
  Pending& pending = pending_of(device);
  size_t count = SIZE_MAX;
  Cut why = Cut::kMemoryBudget;
  {
    std::lock_guard lock(pending.mutex);
    if (pending.planner.full()) {
      count = pending.planner.choose();
      why = pending.planner.over_budget() ? Cut::kMemoryBudget
            : pending.planner.repeats()   ? Cut::kRepetition
                                          : Cut::kMaximumLength;
    } else if (has_room(pending, program)) {
      return;
    }
  }
  const Launched launched = launch_first(pending, device, count, why);
  if (launched.error) std::rethrow_exception(launched.error);
  std::lock_guard lock(pending.mutex);
  if (pending.planner.pending() == 0) {
    pending.ledger.check_room(fresh_bytes(program));  // says so where it is issued
  }
}

Frame::Writes fused_writes() noexcept {
  return checks_met.load(std::memory_order_relaxed) ? Frame::Writes::kHold : Frame::Writes::kKeep;
}

bool shares_pending(const trace::DeviceValue& value) noexcept {
  return !value.pending() || !checks_met.load(std::memory_order_relaxed);
}

namespace {

// Null when nothing was ever issued on the device.
Pending* known_pending(int device) {
  return all_pending.at(static_cast<size_t>(device)).load(std::memory_order_acquire);
}

}  // namespace

void launch_pending(int device, Cut why) {
  Pending* const pending = known_pending(device);
  if (pending == nullptr) return;
  const Launched launched = launch_first(*pending, device, SIZE_MAX, why);
  if (launched.error) std::rethrow_exception(launched.error);
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

namespace {

// For somebody who needs one value: what others failed with is for those who issued it, and a call
// of this thread that found no room may still run.
std::exception_ptr launch_for_read(int device) {
  Pending* const pending = known_pending(device);
  if (pending == nullptr) return nullptr;
  const Launched launched = launch_first(*pending, device, SIZE_MAX, Cut::kHostRead);
  if (launched.error && launched.error_is_no_room) {
    device::note_error(trace::this_thread(), launched.error);
  } else if (launched.error) {
    std::rethrow_exception(launched.error);
  }
  return launched.no_room;
}

}  // namespace

void launch_at_read(int device) {
  Pending* const pending = known_pending(device);
  if (pending == nullptr || Recorder::current() != nullptr) return;
  {
    const std::lock_guard lock(pending->mutex);
    if (pending->planner.pending() < pending->planner.limits().min_nodes) return;
  }
  launch_for_read(device);
}

void register_fused() {
  trace::DeviceValue::set_runner({&launch_for_read, &compact});
  trace::Promise::set_blocking([](const std::function<void()>& wait) {
    const base::WithoutGil released;
    wait();
  });
  device::set_launch_pending([](int device) { launch_pending(device, Cut::kSynchronize); });
}

}  // namespace torch_tpu::dispatch
