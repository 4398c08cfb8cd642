// The miss path: from a call to a compiled program.
#pragma once

#include "csrc/dispatch/frame.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// Infers, lowers and compiles. The result may instead ask for out= tensors to be resized first.
trace::ProgramPtr build_program(const Frame& frame);

}  // namespace torch_tpu::dispatch
