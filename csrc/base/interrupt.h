// What ends a wait before its time: Ctrl-C, or what a signal's handler raises. Nothing below the
// bindings knows Python, so they say how to look for a signal; who may wait for long looks ten
// times a second.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace torch_tpu::base {

// A base of what is thrown then, beside Python's own error: the work that was waited for goes on.
struct Interrupted {
  virtual ~Interrupted() = default;
};

// Throws where a signal has come and this thread has to handle it. May take Python's lock.
using InterruptCheck = void (*)();
void set_interrupt_check(InterruptCheck check) noexcept;  // null: nobody looks
void check_interrupt();

constexpr auto kInterruptSlice = std::chrono::milliseconds(100);

// As `changed.wait_until(lock, until, ready)`, but looks for signals, with the lock let go.
template <typename Ready>
bool wait_interruptibly(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                        std::chrono::steady_clock::time_point until, Ready ready) {
  while (true) {
    const auto now = std::chrono::steady_clock::now();
    if (changed.wait_until(lock, std::min(until, now + kInterruptSlice), ready)) return true;
    if (std::chrono::steady_clock::now() >= until) return false;
    lock.unlock();
    check_interrupt();
    lock.lock();
  }
}

// Without an end.
template <typename Ready>
void wait_interruptibly(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                        Ready ready) {
  wait_interruptibly(changed, lock, std::chrono::steady_clock::time_point::max(), ready);
}

}  // namespace torch_tpu::base
