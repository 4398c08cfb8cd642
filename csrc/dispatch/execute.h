// Runs the program of one op: arguments in, buffers out. For calls that run at once and for those
// that were recorded and run later.
#pragma once

#include <span>

#include <c10/util/SmallVector.h>

#include "csrc/dispatch/frame.h"
#include "csrc/trace/program.h"
#include "csrc/trace/trace.h"

namespace torch_tpu::dispatch {

struct Execution {
  c10::SmallVector<PJRT_Buffer*, 12> args;  // the inputs' buffers; the rest is added by execute()
  std::span<const float> f32;
  std::span<const double> f64;
  std::span<const int64_t> s64;
  uint64_t rng[2] = {0, 0};  // seed and offset, for programs that draw
  c10::SmallVector<PJRT_Buffer*, 8> outs;
};

// Throws c10::OutOfMemoryError when there is no room; its text names the line, where given.
void execute(trace::Program& program, Execution& run, int device, trace::IssueLine line = {});

// The part of the generator's stream that a call draws from; none when it does not.
void reserve_random(const Frame& frame, const trace::Program& program, uint64_t (&state)[2]);

}  // namespace torch_tpu::dispatch
