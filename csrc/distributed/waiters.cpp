#include "csrc/distributed/waiters.h"

#include <chrono>
#include <thread>

#include <pthread.h>

#include "csrc/base/fork.h"
#include "csrc/base/signals.h"

namespace torch_tpu::distributed {

Waiters& Waiters::get() {
  static base::PerProcess<Waiters> waiters;  // its threads may outlive static destructors
  return waiters.get();
}

void Waiters::run(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (idle_ >= tasks_.size()) {
    added_.notify_one();
  } else {
    const base::WithoutSignals for_it;
    std::thread([this] { work(); }).detach();
  }
}

void Waiters::work() {
  pthread_setname_np(pthread_self(), "tpu_waiter");
  std::unique_lock lock(mutex_);
  while (true) {
    if (tasks_.empty()) {
      ++idle_;
      const bool more =
          added_.wait_for(lock, std::chrono::seconds(30), [this] { return !tasks_.empty(); });
      --idle_;
      if (!more) return;
    }
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds is freed outside the lock
    lock.lock();
  }
}

}  // namespace torch_tpu::distributed
