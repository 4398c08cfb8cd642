// What fork() leaves behind. In a child only the thread that forked lives on: locks that others
// held stay locked, threads cannot be joined, and a condition variable that somebody waited for
// cannot be destroyed. Whatever locks, joins or calls a plugin at the end of its life asks here.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace torch_tpu::base {

namespace detail {
extern std::atomic<uint32_t> forks;  // between the first process and this one
extern std::atomic<bool> bad_fork;
}  // namespace detail

// Between the two, which nest, a child that is forked is a bad one: the device's client runs, or is
// being started.
void begin_bad_forks() noexcept;
void end_bad_forks() noexcept;
// Whether this is such a child. It must not call the plugin, nor wait for anything of ours.
inline bool in_bad_fork() noexcept { return detail::bad_fork.load(std::memory_order_relaxed); }
// With PyTorch's words for a device that cannot be used there.
[[noreturn]] void throw_bad_fork();

// Remembers in which process it was made. Objects with threads of their own keep one.
class ForkMark {
 public:
  bool forked_since() const noexcept {
    return forks_ != detail::forks.load(std::memory_order_relaxed);
  }

 private:
  uint32_t forks_ = detail::forks.load(std::memory_order_relaxed);
};

// An object that lives as long as the process and never ends. A forked child makes its own: the
// threads of the other one are not there.
template <class T>
class PerProcess {
 public:
  T& get() {
    Made* known = made_.load(std::memory_order_acquire);
    while (known == nullptr || known->mark.forked_since()) {
      auto* fresh = new Made();
      if (made_.compare_exchange_strong(known, fresh)) return fresh->value;
      delete fresh;
    }
    return known->value;
  }

 private:
  struct Made {
    T value;
    const ForkMark mark;
  };
  std::atomic<Made*> made_{nullptr};
};

// From now on forks wait for `mutex`, so that a child can use what it guards. For a few locks that
// are held briefly, without taking another one. It must live for ever.
void hold_while_forking(std::mutex& mutex);

}  // namespace torch_tpu::base
