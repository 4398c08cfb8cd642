#include "csrc/base/fork.h"

#include <array>
#include <stdexcept>

#include <pthread.h>

namespace torch_tpu::base {

namespace detail {
std::atomic<uint32_t> forks{0};
std::atomic<bool> bad_fork{false};
}  // namespace detail

namespace {

std::atomic<int> reasons{0};  // why a forked child is a bad one

// Guards what follows, and is itself held while forking. All of it is there before other files'
// statics are made.
std::mutex forking;
std::array<std::mutex*, 8> held{};
size_t held_count = 0;

void before_fork() {
  forking.lock();
  for (size_t i = 0; i < held_count; ++i) held[i]->lock();
}

void after_fork() {
  for (size_t i = held_count; i > 0; --i) held[i - 1]->unlock();
  forking.unlock();
}

void after_fork_in_child() {
  detail::forks.fetch_add(1, std::memory_order_relaxed);
  if (reasons.load(std::memory_order_relaxed) > 0) {
    detail::bad_fork.store(true, std::memory_order_relaxed);
  }
  after_fork();
}

// When the library is loaded: a fork may come while the client is being started.
const int registered = pthread_atfork(before_fork, after_fork, after_fork_in_child);

}  // namespace

void begin_bad_forks() noexcept { reasons.fetch_add(1); }
void end_bad_forks() noexcept { reasons.fetch_sub(1); }

void throw_bad_fork() {
  throw std::runtime_error(
      "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, you must "
      "use the 'spawn' start method");
}

void hold_while_forking(std::mutex& mutex) {
  const std::lock_guard lock(forking);
  if (held_count == held.size()) throw std::length_error("hold_while_forking: too many locks");
  held[held_count++] = &mutex;
}

}  // namespace torch_tpu::base
