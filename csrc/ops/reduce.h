// Reductions that other families build on.
#pragma once

#include "csrc/ops/table.h"

namespace torch_tpu::ops {

// The p-norm over `dims` of values that are already non-negative; p may be 0, inf or negative.
Value p_norm(const Value& magnitude, double p, const Dims& dims, bool keepdim);

void add_distance(Entries& t);  // distance.cpp; add_reduce calls it

}  // namespace torch_tpu::ops
