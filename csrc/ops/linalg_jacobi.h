// Jacobi's method, in the parallel order: N vectors meet in N / 2 pairs at a time, the first half
// against the second, and after N - 1 steps each has met each. The vectors are rows here, dim 1 of
// [B, N, m], so that both halves are plain slices.
#pragma once

#include "csrc/ops/linalg.h"

namespace torch_tpu::ops::linalg {

// The unitary [[c, s], [-s w, c w]] that diagonalizes the Hermitian [[alpha, gamma], [., beta]],
// where |w| = 1. c and s are real.
struct Rotation {
  Value c, s, w;
  Value gain;  // added to beta and taken from alpha
};
Rotation rotation_for(const Value& alpha, const Value& beta, const Value& gamma);

// The columns (x_p, x_q) of a matrix times the rotation, given as rows. [B, h, 1] against [B, h,
// m].
struct Pair {
  Value p, q;
};
Pair rotate(const Rotation& r, const Pair& x);
Pair halves(const Value& x, int64_t dim);
Value joined(const Pair& x, int64_t dim);
// The pairs of the next step: the first stays, the others move on by one around the table.
Value next_round(const Value& x, int64_t dim);

// Sweeps over `inits` until one finds nothing to do, at most kMaxSweeps times. A sweep is `steps`
// calls of `step`, which returns the next state and whether any pair was still open, as a bool.
inline constexpr int64_t kMaxSweeps = 40;
using Step = std::function<std::pair<Values, Value>(const Values&)>;
Values sweeps(Builder& b, int64_t steps, const Values& inits, const Step& step);
Value any(const Value& x);  // of all elements

// The largest absolute value of each matrix [B, 1, 1]; 1 where that is 0 or not finite.
Value scale_of(const Value& x);
// For flat matrices: s32 [B], `info` where a NaN is among its elements and 0 elsewhere.
Value info_of_nans(const Value& x, int64_t info);

}  // namespace torch_tpu::ops::linalg
