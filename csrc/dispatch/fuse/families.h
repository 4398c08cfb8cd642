// Fused Eager and sizes that change: which family a piece belongs to, and the bounded program that
// serves it. The rules are in trace/family.h.
#pragma once

#include "csrc/trace/fused.h"

namespace torch_tpu::dispatch {

struct MeetFamily {
  bool soon = false;   // see trace/family.h
  bool serves = true;  // false: only counts the sizes
};

// For a piece that has no program of its own. Finds or compiles the bounded one that serves it, if
// it is time for that, and has better ones compiled in the background. True when the piece was met
// often enough for a program of its own.
bool meet_family(const trace::FusedPtr& piece, const trace::Segment& segment,
                 const trace::Signature& signature, MeetFamily how);

}  // namespace torch_tpu::dispatch
