// Running reductions along one dimension, for the families that build on them.
#pragma once

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

// Inclusive: element i combines elements 0..i. No conversion to a wider type.
Value scan(const Value& x, int64_t dim, Reduction kind);

}  // namespace torch_tpu::ops
