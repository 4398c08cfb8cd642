// The end of work that runs outside PJRT (a collective) and makes values: kept once, by the thread
// that finishes the work. Values hold it, so whoever needs their memory waits here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace torch_tpu::trace {

// Thread-safe.
class Promise {
 public:
  // The first call counts; later ones return false and do nothing. Callbacks run on this thread.
  bool finish(std::exception_ptr error = nullptr);

  bool done() const noexcept;
  // Blocks, without Python's lock (set_blocking), until it is kept or a signal comes (interrupt.h).
  void wait() const;
  // The same; false when `timeout` passed first. Neither throws the work's error.
  bool wait_for(std::chrono::milliseconds timeout) const;
  // Null while running or when all went well.
  std::exception_ptr error() const;
  void rethrow() const {
    if (std::exception_ptr failure = error()) std::rethrow_exception(failure);
  }
  // Called once it is finished: at once on this thread if it already is.
  void on_done(std::function<void()> callback);

  // Wraps every wait; the layers above use it to let go of Python's lock. Set once.
  using Blocking = void (*)(const std::function<void()>& wait);
  static void set_blocking(Blocking blocking) noexcept;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  std::vector<std::function<void()>> callbacks_;
};

using PromisePtr = std::shared_ptr<Promise>;

}  // namespace torch_tpu::trace
