#include "csrc/distributed/turns.h"

#include <map>
#include <memory>

#include "csrc/base/fork.h"

namespace torch_tpu::distributed {

Turns& Turns::of(int device) {
  static std::mutex mutex;
  static auto* all = new std::map<int, std::unique_ptr<Turns>>();  // leaked: calls may outlive it
  std::lock_guard lock(mutex);
  std::unique_ptr<Turns>& turns = (*all)[device];
  if (!turns) turns = std::make_unique<Turns>();
  return *turns;
}

Turn::Turn(Turns& turns) : turns_(turns) {
  std::lock_guard lock(turns_.mutex_);
  number_ = turns_.next_++;
  turns_.open_.insert(number_);
}

bool Turn::has_come() {
  std::lock_guard lock(turns_.mutex_);
  return !turns_.open_.empty() && *turns_.open_.begin() == number_;
}

bool Turn::await(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(turns_.mutex_);
  const auto come = [this] { return *turns_.open_.begin() == number_; };
  const auto passed = [this] { return turns_.open_.count(number_) == 0; };
  turns_.changed_.wait_until(lock, until, [&] { return passed() || come(); });
  return !passed() && come();
}

void Turn::pass() {
  if (base::in_bad_fork()) return;  // who waits for it does so in another process
  std::lock_guard lock(turns_.mutex_);
  if (turns_.open_.erase(number_) != 0) turns_.changed_.notify_all();
}

}  // namespace torch_tpu::distributed
