// Small pieces that several families share: dims, promotion, reductions in a wider type.
#pragma once

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

// bf16, f16, float8 -> f32; everything else stays. The type CPU kernels accumulate and compute in.
DType opmath(DType dtype);
// opmath for floats and complex, f32 for integers and bool.
DType float_math(DType dtype);

int64_t wrap_dim(int64_t dim, int64_t rank);  // rank 0 counts as rank 1
// Wraps, sorts, removes duplicates; empty means all dims when `empty_is_all`.
Dims wrap_dims(const Dims& dims, int64_t rank, bool empty_is_all = true);
Dims range(int64_t n);
Dims without(const Dims& all, const Dims& dropped_positions);
// Shape with the given positions set to 1.
Dims keep_dims(const Dims& shape, const Dims& reduced);

Value cast(const Value& x, DType dtype);  // Builder::convert, with bool and float->int as PyTorch
Value zeros_like(const Value& x);
Value ones_like(const Value& x);
Value full(Builder& b, const Number& value, DType dtype, const Dims& dims);
// How many elements count over these dims: a constant, or where one varies known at run time. 0-d.
Value count_of(const Value& x, const Dims& dims, DType dtype);
// `sum` divided by that number.
Value divide_by_count(const Value& sum, const Value& x, const Dims& dims);
// The size of one dimension, as above.
Value size_of(const Value& x, int64_t dim, DType dtype);
// Throws Unproven where one of the dims varies: for lowerings that read its size as a number.
void expect_whole(const Value& x, const Dims& dims, std::string_view why);
// Broadcasts two values to their common shape (numpy rules).
std::pair<Value, Value> broadcast2(const Value& a, const Value& b);
Dims broadcast_shape(const Dims& a, const Dims& b);

// Reduces over `dims` (already wrapped). keepdim leaves ones.
Value reduce_sum(const Value& x, const Dims& dims, bool keepdim = false);
Value reduce_max(const Value& x, const Dims& dims, bool keepdim = false);  // NaN propagates
Value reduce_min(const Value& x, const Dims& dims, bool keepdim = false);
// NaN may be lost. For shifts (softmax): x itself brings its NaN into the result. Compilers know
// this form and fuse it with what follows.
Value reduce_max_loose(const Value& x, const Dims& dims, bool keepdim = false);
// The larger and the smaller of two values of one type; NaN propagates on every target.
Value nan_maximum(const Value& a, const Value& b);
Value nan_minimum(const Value& a, const Value& b);
// nan_maximum and nan_minimum as the body of a reduction, window or scatter.
stablehlo::Region nan_extreme_body(Reduction kind);
Value reduce_prod(const Value& x, const Dims& dims, bool keepdim = false);
Value reduce_mean(const Value& x, const Dims& dims, bool keepdim = false);  // x is floating
// Sums `x` down to `shape` (the gradient of a broadcast).
Value sum_to(const Value& x, const Dims& shape);
// Puts a value reduced without keepdim back: inserts dims at `positions` and broadcasts to `shape`.
Value expand_back(const Value& reduced, const Dims& shape, const Dims& positions);

// Batched or plain product over the last two dims, accumulating in f32 for bf16/f16.
Value matmul2(const Value& a, const Value& b);

}  // namespace torch_tpu::ops
