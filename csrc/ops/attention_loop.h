// Pieces of attention by a loop over blocks of the scores: for sequences of one length
// (attention_blocks.cpp) and for sequences one after the other (attention_jagged.cpp).
#pragma once

#include <limits>

#include "csrc/ops/attention.h"
#include "csrc/ops/call.h"
#include "csrc/ops/helpers.h"

namespace torch_tpu::ops {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline int64_t blocks_of(int64_t length, int64_t side) { return (length + side - 1) / side; }

inline Value number(Builder& b, int64_t n) { return b.splat_int(n, Type(DType::kS32, {})); }

// One dimension of the block's mask: its position in the whole is at least `first`.
inline Value not_before(const Value& start, const Value& first, int64_t dim, const Dims& dims) {
  Builder& b = start.builder();
  const Value at = b.iota(Type(DType::kS32, dims), dim);
  return b.ge(b.add(at, b.broadcast_to(start, dims)), b.broadcast_to(first, dims));
}

// `length` positions of dim `dim` from `start` on.
struct Slice {
  Value start;
  int64_t dim, length;

  Values starts(int64_t rank) const {
    Values out(rank, number(start.builder(), 0));
    out[dim] = start;
    return out;
  }
  Value of(const Value& x) const {
    Dims sizes = x.dims();
    sizes[dim] = length;
    return x.builder().dynamic_slice(x, starts(x.rank()), sizes);
  }
  Value put(const Value& x, const Value& part) const {
    return x.builder().dynamic_update_slice(x, part, starts(x.rank()));
  }
  Value add(const Value& x, const Value& part) const { return put(x, of(x) + part); }
};

// Where it is -inf: 0, as inf - inf is no number.
inline Value finite_shift(const Value& x) {
  Builder& b = x.builder();
  return b.select(b.eq(x, b.like(x, -kInfinity)), zeros_like(x), x);
}

// One more block of the scores of some rows: the maximum and the sum of their softmax so far, the
// block's weights, and by how much fades what was mixed before.
struct Softmax {
  Value max, sum, weights, fade;
};

inline Softmax with_block(const Value& scores, const Value& max_before, const Value& sum_before) {
  Builder& b = scores.builder();
  const Value max = b.maximum(max_before, reduce_max_loose(scores, {3}));
  const Value shift = finite_shift(max);
  const Value weights = b.exponential(scores - over_last(shift, scores.dims()));
  const Value fade = b.exponential(max_before - shift);
  return {max, sum_before * fade + reduce_sum(weights, {3}), weights, fade};
}

}  // namespace torch_tpu::ops
