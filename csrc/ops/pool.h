// Window geometry shared by the pooling files.
#pragma once

#include "csrc/ops/table.h"

namespace torch_tpu::ops {

void add_avg_pool(Entries& t);         // pool_avg.cpp; add_pool calls it
void add_fractional_pool(Entries& t);  // pool_fractional.cpp; add_pool calls it

// Pooling along one dimension of a tensor.
struct PoolDim {
  int64_t dim = 0;
  int64_t in = 0, out = 0;
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;

  int64_t reach() const { return (kernel - 1) * dilation + 1; }
  // Outputs whose windows can cover one input.
  int64_t overlap() const { return (reach() + stride - 1) / stride; }
};

// The last `n` dimensions, from arguments kernel_size, stride, padding and (if any) dilation.
std::vector<PoolDim> pool_dims(Call& c, const Dims& in, const Dims& out, int64_t n);

// The maximum along the dimensions pooled so far, and where in the plane it was found.
struct Best {
  Value value;
  Value index;
};

// The better of the best so far (undefined: nothing yet) and a tap, which comes later in memory.
Best better(const Best& best, const Best& tap);

// Index type for positions in a plane.
DType index_dtype(int64_t plane);

// Zeros of shape `out` whose last n dimensions are a plane, with x put (or added) at `index`.
enum class Combine : uint8_t;
Value scatter_planes(const Value& x, const Value& index, const Dims& out, int64_t n, Combine how);

// At input position i: x at output position (i + padding) / stride - back; `fill` outside.
Value covering_output(const Value& x, const PoolDim& d, int64_t back, double fill);

}  // namespace torch_tpu::ops
