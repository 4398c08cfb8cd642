// Pieces of attention by a loop over blocks of the scores: for sequences of one length
// (attention_blocks.cpp) and for sequences one after the other (attention_jagged.cpp).
#pragma once

#include <limits>

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

}  // namespace torch_tpu::ops
