// Shapes of the most common ops without Python. PyTorch registers Python over its own Meta kernels
// in C++, and the first call of one imports sympy: half a second before the first result.
#pragma once

#include "csrc/dispatch/call/op.h"

namespace torch_tpu::dispatch {

// Replaces the stand-ins on the stack by the results, as the op's Meta kernel would. False, and the
// stack as it was, when that is left to the Meta kernel. Throws what PyTorch's C++ does for
// arguments that do not fit.
bool run_plain_meta(const Op& op, c10::Stack& stack);

}  // namespace torch_tpu::dispatch
