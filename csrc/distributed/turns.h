// The order in which collectives start on one device. Where a client spans processes, programs of
// two groups that share devices wait for each other on the devices: every process must start them
// in one order, that in which they were called, though each group has a queue of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

namespace torch_tpu::distributed {

class Turns {
 public:
  static Turns& of(int device);

 private:
  friend class Turn;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;
  std::set<uint64_t> open_;  // taken, and not passed on
};

// One place in the order, taken when made. Thread-safe.
class Turn {
 public:
  explicit Turn(Turns& turns);
  ~Turn() { pass(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // All that were called before have started, or never will.
  bool has_come();
  // The same, after waiting; false when the time is over or the turn was passed on.
  bool await(std::chrono::steady_clock::time_point until);
  // It has started, or never will. May be called again.
  void pass();

 private:
  Turns& turns_;
  uint64_t number_;
};

}  // namespace torch_tpu::distributed
