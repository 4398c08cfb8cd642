// Products of 64-bit integers. TPU compilers emulate 64-bit arithmetic, but have no dot or
// convolution of it; multiplying and summing says the same and is fused into one loop.
#pragma once

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

// Whether products of this dtype must go by the functions below.
bool is_wide_integer(DType dtype);

// As Builder::dot_general: batch dims, free dims of a, free dims of b.
Value integer_dot(const Value& a, const Value& b, const stablehlo::DotDims& dims);

// As Builder::convolution, one product per tap of the kernel: for kernels of at most
// kMaxIntegerTaps, or the program becomes too large.
inline constexpr int64_t kMaxIntegerTaps = 256;
Value integer_convolution(const Value& x, const Value& kernel, const stablehlo::Window& window,
                          const stablehlo::ConvDims& dims, int64_t groups);

}  // namespace torch_tpu::ops
