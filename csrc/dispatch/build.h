// The miss path: from a call to a compiled program.
#pragma once

#include <stdexcept>

#include "csrc/dispatch/frame.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// The op has a lowering, but not for this dtype or form: the caller runs it on the CPU.
class NotLowered : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Infers, lowers and compiles. The result may instead ask for out= tensors to be resized first.
trace::ProgramPtr build_program(const Frame& frame);

}  // namespace torch_tpu::dispatch
