// For the process group: collectives in torch.profiler's traces. They begin on one thread and end
// on another, so they are no spans of the journal.
#pragma once

#include <cstdint>
#include <string>

#include "csrc/dispatch/call/mode.h"

namespace torch_tpu::dispatch {

struct CollectiveSpan {
  std::string op;
  std::string detail;  // dtype, sizes, reduction
  std::string group;
  uint64_t seq = 0;  // in the group
  int64_t bytes = 0;
  int device = 0;
  IssueLine line{};
  int64_t start_ns = 0;  // by the journal's clock
  int64_t end_ns = 0;
  bool failed = false;
};

// Whether a session runs, which then waits for the end.
bool profile_collective_begin() noexcept;
void profile_collective_end(const CollectiveSpan& span) noexcept;

// Waits, 10 s at most, until what was launched is in the session's trace. For `synchronize`, which
// PyTorch calls before it ends a profile: with no lock held, Python's neither.
void profile_settle();

}  // namespace torch_tpu::dispatch
