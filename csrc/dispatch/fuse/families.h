// Fused Eager and sizes that change: which family a piece belongs to, and the bounded program that
// serves it. The rules are in trace/family.h.
#pragma once

#include "csrc/trace/fused.h"

namespace torch_tpu::dispatch {

// For a piece that has no program of its own. Finds or compiles the bounded one that serves it, if
// it is time for that. True when the piece was met often enough for a program of its own. `soon`:
// see trace/family.h.
bool meet_family(const trace::FusedPtr& piece, const trace::Segment& segment,
                 const trace::Signature& signature, bool soon);

// Looks for the program's code on disk; false: nobody has it.
bool load_fused(trace::FusedProgram& program);

}  // namespace torch_tpu::dispatch
