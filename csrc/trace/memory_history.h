// Who took device memory and gave it back, while somebody asks for it: the newest events, and of
// values that are alive the line that made them. Costs one look at a flag when nobody does.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "csrc/trace/issue_line.h"

namespace torch_tpu::trace {

struct MemoryEvent {
  bool takes = true;
  uint64_t address = 0;  // a number for the value; used again only when it is gone
  int64_t bytes = 0;
  int device = 0;
  int64_t time_us = 0;  // since the epoch
  IssueLine line;       // of the call that made the value; of a free: the same
};

class MemoryHistory {
 public:
  static MemoryHistory& get();
  static bool on() noexcept { return on_.load(std::memory_order_relaxed); }

  // From here on, forgetting what was before; 0 events: no more.
  void start(size_t max_events);
  std::vector<MemoryEvent> events();
  std::vector<MemoryEvent> alive();  // made since the start

  // A value was made, maybe without memory as yet. Takes the line of the calling thread: without
  // locks.
  static void made(const void* value) noexcept;
  // It got memory, gave it back, is gone.
  static void entered(const void* value, int64_t bytes, int device) noexcept;
  static void left(const void* value) noexcept;
  static void gone(const void* value) noexcept;

 private:
  static inline std::atomic<bool> on_{false};
};

}  // namespace torch_tpu::trace
