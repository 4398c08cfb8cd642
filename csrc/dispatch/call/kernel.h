// What the dispatcher calls for an op of the table.
#pragma once

#include <torch/library.h>

#include "csrc/dispatch/call/op.h"

namespace torch_tpu::dispatch {

// Boxed, but for ops that take only tensors and numbers: those are called as C++ functions. The op
// must live for ever.
torch::CppFunction make_kernel(const Op& op);

}  // namespace torch_tpu::dispatch
