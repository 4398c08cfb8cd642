#include "csrc/device/stream.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>

#include <c10/util/Exception.h>

#include "csrc/base/interrupt.h"
#include "csrc/device/checks.h"
#include "csrc/device/current.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/value.h"

namespace torch_tpu::device {
namespace {

using Clock = std::chrono::steady_clock;
using trace::Ledger;

constexpr c10::StreamId kPoolSize = 32;  // ids 1 to 32; new streams come after
std::atomic<c10::StreamId> next_in_pool{0};
std::atomic<c10::StreamId> next_id{kPoolSize + 1};
LaunchPending launch_hook = nullptr;  // set while the module is imported, before the first op

thread_local std::array<c10::StreamId, Ledger::kMaxDevices> current_ids{};

c10::StreamId& current_id(int device) { return current_ids.at(static_cast<size_t>(device)); }

c10::Stream make_stream(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, make_device(device), id);
}

Ledger& launched_ledger(int device) {
  check_not_forked();
  launch_pending(device);
  return Ledger::of(device);
}

}  // namespace

void set_launch_pending(LaunchPending launch) noexcept { launch_hook = launch; }

void launch_pending(int device) {
  if (launch_hook != nullptr) launch_hook(device);
}

bool idle(int device) { return launched_ledger(device).idle(); }

c10::Stream default_stream(int device) { return make_stream(device, 0); }

c10::Stream current_stream(int device) { return make_stream(device, current_id(device)); }

c10::Stream exchange_stream(c10::Stream stream) {
  const int device = check_device(stream.device_index());
  const c10::StreamId previous = std::exchange(current_id(device), stream.id());
  return make_stream(device, previous);
}

c10::Stream pool_stream(int device) {
  return make_stream(device, 1 + next_in_pool.fetch_add(1, std::memory_order_relaxed) % kPoolSize);
}

c10::Stream new_stream(int device) {
  return make_stream(device, next_id.fetch_add(1, std::memory_order_relaxed));
}

struct Event::State {
  explicit State(int device) : device(device) {}
  const int device;
  // Guarded by the timeline's mutex.
  std::condition_variable changed;
  bool reached = false;  // the work before it is finished
  bool done = false;     // and so are the events before it
  Clock::time_point when;
};

// The events of a device that are not done, in the order they were recorded. The plugin's callbacks
// come in any order; events are done in order, so that a later one is never done before an earlier.
class Event::Timeline {
 public:
  static Timeline& of(int device) {
    static auto* all = new std::array<Timeline, Ledger::kMaxDevices>();  // leaked: used by threads
    return all->at(static_cast<size_t>(device));
  }

  void add(std::shared_ptr<State> state) {
    std::lock_guard lock(mutex_);
    pending_.push_back(std::move(state));
  }
  void reach(State& state) {
    std::lock_guard lock(mutex_);
    state.reached = true;
    while (!pending_.empty() && pending_.front()->reached) {
      State& first = *pending_.front();
      first.when = Clock::now();
      first.done = true;
      first.changed.notify_all();
      pending_.pop_front();
    }
  }
  bool done(const State& state) {
    std::lock_guard lock(mutex_);
    return state.done;
  }
  void wait(State& state) {
    std::unique_lock lock(mutex_);
    base::wait_interruptibly(state.changed, lock, [&] { return state.done; });
  }
  // For everything recorded so far.
  void wait_all() {
    std::unique_lock lock(mutex_);
    if (pending_.empty()) return;
    const std::shared_ptr<State> last = pending_.back();
    base::wait_interruptibly(last->changed, lock, [&] { return last->done; });
  }

 private:
  std::mutex mutex_;
  std::deque<std::shared_ptr<State>> pending_;
};

void Event::record(int device) {
  Ledger& ledger = launched_ledger(device);
  Timeline& timeline = Timeline::of(device);
  auto state = std::make_shared<State>(device);
  timeline.add(state);
  try {
    ledger.when_idle([&timeline, state] { timeline.reach(*state); });
  } catch (...) {
    timeline.reach(*state);  // or no later event would ever be done
    throw;
  }
  state_ = std::move(state);
}

bool Event::query() const {
  if (!state_) return true;
  check_not_forked();  // the thread that would tell us is not in this process
  return Timeline::of(state_->device).done(*state_);
}

void Event::synchronize() const {
  if (!state_) return;
  check_not_forked();
  Timeline::of(state_->device).wait(*state_);
}

void Event::synchronize_all(int device) { Timeline::of(device).wait_all(); }

double Event::elapsed_ms(const Event& end) const {
  TORCH_CHECK_VALUE(state_ && end.state_,
                    "Both events must be recorded before calculating elapsed time.");
  TORCH_CHECK(query() && end.query(),
              "Both events must be completed before calculating elapsed time.");
  return std::chrono::duration<double, std::milli>(end.state_->when - state_->when).count();
}

void synchronize(int device) {
  // The callbacks may come a little after the work is done; an event must be done by then as well.
  try {
    launched_ledger(device).synchronize();
  } catch (const base::Interrupted&) {
    throw;  // the work goes on, and so nothing is waited for
  } catch (...) {
    if (!pjrt::Runtime::in_bad_fork()) Event::synchronize_all(device);
    throw;
  }
  Event::synchronize_all(device);
  raise_unreported();
}

}  // namespace torch_tpu::device
