// From a piece of the trace to its code: found on disk, compiled to be there soon for who waits, or
// compiled well in the background.
#pragma once

#include "csrc/trace/fused.h"

namespace torch_tpu::dispatch {

enum class Haste : uint8_t {
  kNone,  // as well as the compiler can
  kSoon,  // somebody waits: where the plugin has a quicker way, that
};

// Looks for the code on disk; false: nobody has it.
bool load_piece(trace::FusedProgram& program);

// By who claimed the code: lowers, compiles, publishes and keeps it. Throws what the lowering or
// the compiler says, and leaves the code claimed then.
void compile_piece(trace::FusedProgram& program, Haste haste);

// Has quick code compiled again, in the background, unless somebody does that already.
void improve_later(const trace::FusedPtr& program);

}  // namespace torch_tpu::dispatch
