#include "csrc/trace/promise.h"

#include <atomic>
#include <utility>

#include <sched.h>

#include "csrc/base/interrupt.h"

namespace torch_tpu::trace {
namespace {

constexpr auto kSoon = std::chrono::microseconds(300);

std::atomic<Promise::Blocking> blocking_hook{nullptr};

void blocking(const std::function<void()>& wait) {
  if (const Promise::Blocking hook = blocking_hook.load(std::memory_order_acquire)) {
    hook(wait);
  } else {
    wait();
  }
}

// A small collective takes less time than it takes to fall asleep and be woken up, most of all
// where all cores are in use. So who waits first lets others run for a moment, ready to go on at
// once.
bool is_done_soon(const Promise& promise) {
  const auto until = std::chrono::steady_clock::now() + kSoon;
  while (std::chrono::steady_clock::now() < until) {
    if (promise.done()) return true;
    sched_yield();
  }
  return false;
}

}  // namespace

void Promise::set_blocking(Blocking blocking) noexcept { blocking_hook.store(blocking); }

bool Promise::finish(std::exception_ptr error) {
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard lock(mutex_);
    if (done_) return false;
    done_ = true;
    error_ = std::move(error);
    callbacks.swap(callbacks_);
  }
  changed_.notify_all();  // not under the lock, which who wakes up wants first
  for (const auto& callback : callbacks) callback();
  return true;
}

bool Promise::done() const noexcept {
  std::lock_guard lock(mutex_);
  return done_;
}

void Promise::wait() const {
  if (done()) return;
  blocking([this] {
    if (is_done_soon(*this)) return;
    std::unique_lock lock(mutex_);
    base::wait_interruptibly(changed_, lock, [this] { return done_; });
  });
}

bool Promise::wait_for(std::chrono::milliseconds timeout) const {
  if (done()) return true;
  const auto until = std::chrono::steady_clock::now() + timeout;
  bool kept = false;
  blocking([&] {
    std::unique_lock lock(mutex_);
    kept = base::wait_interruptibly(changed_, lock, until, [this] { return done_; });
  });
  return kept;
}

std::exception_ptr Promise::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void Promise::on_done(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

}  // namespace torch_tpu::trace
