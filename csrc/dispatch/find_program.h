// What a call does that finds no program in memory: one from disk if there is, else it builds one
// and leaves it there.
#pragma once

#include "csrc/dispatch/call/frame.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// The answer is in the memory cache when this returns. `built`: no disk had it.
trace::Answer load_or_build(const Frame& frame, uint64_t hash, bool& built);

}  // namespace torch_tpu::dispatch
