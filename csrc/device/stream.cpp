#include "csrc/device/stream.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include <c10/util/Exception.h>

#include "csrc/device/current.h"
#include "csrc/trace/value.h"

namespace torch_tpu::device {
namespace {

using Clock = std::chrono::steady_clock;
using trace::Ledger;

constexpr c10::StreamId kPoolSize = 32;  // ids 1 to 32; new streams come after
std::atomic<c10::StreamId> next_in_pool{0};
std::atomic<c10::StreamId> next_id{kPoolSize + 1};
std::atomic<LaunchPending> launch_pending{nullptr};

thread_local std::array<c10::StreamId, Ledger::kMaxDevices> current_ids{};

c10::StreamId& current_id(int device) { return current_ids.at(static_cast<size_t>(device)); }

c10::Stream make_stream(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, make_device(device), id);
}

Ledger& launched_ledger(int device) {
  check_not_forked();
  if (LaunchPending launch = launch_pending.load(std::memory_order_acquire)) launch(device);
  return Ledger::of(device);
}

}  // namespace

void set_launch_pending(LaunchPending launch) noexcept {
  launch_pending.store(launch, std::memory_order_release);
}

void synchronize(int device) { launched_ledger(device).synchronize(); }

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
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Clock::time_point when;
};

void Event::record(int device) {
  auto state = std::make_shared<State>();
  launched_ledger(device).when_idle([state] {
    {
      std::lock_guard lock(state->mutex);
      state->when = Clock::now();
      state->done = true;
    }
    state->changed.notify_all();
  });
  state_ = std::move(state);
}

bool Event::query() const {
  if (!state_) return true;
  std::lock_guard lock(state_->mutex);
  return state_->done;
}

void Event::synchronize() const {
  if (!state_) return;
  check_not_forked();  // the thread that would wake us is not in this process
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->done; });
}

double Event::elapsed_ms(const Event& end) const {
  TORCH_CHECK_VALUE(state_ && end.state_,
                    "Both events must be recorded before calculating elapsed time.");
  TORCH_CHECK(query() && end.query(),
              "Both events must be completed before calculating elapsed time.");
  return std::chrono::duration<double, std::milli>(end.state_->when - state_->when).count();
}

}  // namespace torch_tpu::device
