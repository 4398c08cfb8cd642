// Calls for which there was no program yet, each with the nearest call before it: what was
// different is why it had to be compiled. Only the keys are kept; they are put in words when asked
// for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/report/key_text.h"
#include "csrc/trace/fused.h"

namespace torch_tpu::dispatch {

// On a miss, before the program is built.
void note_miss(const Frame& frame) noexcept;
// Under which causes.h knows the program's call.
uint64_t identity_of(const trace::Program& program);

struct Miss {
  std::string op;
  std::string where;  // the Python line, or ""
  int64_t time_ns = 0;
  bool first = false;     // the first call of this op: nothing to compare with
  bool readable = true;   // whether the keys could be put in words
  Difference difference;  // empty when `first`
  std::string text;       // the difference in words
  std::string signature;  // the call: "float32[8, 128], float32[128], dim=1"
};

// The newest misses, oldest first.
std::vector<Miss> misses();
// What was new about a fused program: "op 37 of 109, aten::cat: input[0].shape[1]: 128 → 135".
std::string describe_news(const trace::FusedProgram& program);
// How many there were, also those no longer kept.
uint64_t num_misses() noexcept;
void reset_misses() noexcept;
// Also the calls to compare with: the next one of each op counts as its first.
void forget_calls() noexcept;

}  // namespace torch_tpu::dispatch
