// Sorting along a dimension, for the families that build on it.
#pragma once

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

struct Sorted {
  Value values, indices;  // indices are s32
};

// Stable; NaN counts as larger than everything.
Sorted sort_dim(const Value& x, int64_t dim, bool descending);

}  // namespace torch_tpu::ops
