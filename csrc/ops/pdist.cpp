// Distances between all pairs of rows of one matrix (torch.pdist), with the backward. Pairs (i, j),
// i < j, are numbered row by row; the number is turned back into a pair on the device.
#include <cmath>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

struct Pairs {
  Value i, j;  // [pairs], s32
};

Pairs pairs_of(Builder& b, int64_t n) {
  const int64_t count = n * (n - 1) / 2;
  const Value k = b.iota(Type(DType::kS32, {count}), 0);
  // Pair number of (row, row + 1).
  const auto first = [&](const Value& row) {
    const Value twice = row * (b.like(row, 2 * n - 1) - row);
    return b.shift_right_arithmetic(twice, b.like(twice, 1));
  };
  // The solution of first(i) <= k, rounded; then corrected by comparing exactly.
  const double side = double(2 * n - 1);
  const Value under = b.convert(k, DType::kF32) * -8.0 + side * side;
  Value i = b.convert((side - b.sqrt(b.maximum(under, zeros_like(under)))) * 0.5, DType::kS32);
  i = b.clamp(b.scalar(0, DType::kS32), i, b.scalar(n - 2, DType::kS32));
  const Value one = ones_like(i);
  for (int round = 0; round < 2; ++round) {
    i = b.select(b.gt(first(i), k), i - one, i);
    i = b.select(b.le(first(i + one), k), i + one, i);
  }
  return {i, k - first(i) + i + one};
}

Value difference(const Value& x, const Pairs& pairs) {
  return take_rows(x, pairs.i, 0) - take_rows(x, pairs.j, 0);
}

Value power(const Value& x, double p) { return x.builder().power(x, x.builder().like(x, p)); }

Values lower_pdist_forward(Call& c) {
  Builder& b = c.b;
  const Value x = c.tensor("self");
  const double p = c.known("p").value_or(2).to_double();
  if (c.out().numel() == 0 || x.dim(1) == 0) return {full(b, 0, x.dtype(), c.out().dims)};
  const Value d = b.abs(difference(x, pairs_of(b, x.dim(0))));
  if (p == 0) return {reduce_sum(b.convert(b.ne(d, zeros_like(d)), x.dtype()), {1})};
  if (p == 1) return {reduce_sum(d, {1})};
  if (p == 2) return {b.sqrt(reduce_sum(d * d, {1}))};
  if (std::isinf(p)) return {reduce_max(d, {1})};
  return {power(reduce_sum(power(d, p), {1}), 1 / p)};
}

Values lower_pdist_backward(Call& c) {
  Builder& b = c.b;
  const Value x = c.tensor("self");
  const double p = c.known("p").value_or(2).to_double();
  const Value grad = c.tensor("grad");
  if (grad.numel() == 0 || x.numel() == 0 || p == 0) return {zeros_like(x)};
  const Pairs pairs = pairs_of(b, x.dim(0));
  const Value d = difference(x, pairs);
  const auto along = [&](const Value& v) { return b.broadcast_in_dim(v, d.dims(), {0}); };
  const Value distance = along(c.tensor("pdist"));
  const Value zero = zeros_like(d);
  const Value none = b.eq(distance, zero);
  Value slope;
  if (p == 1) {
    slope = b.sign(d);
  } else if (std::isinf(p)) {
    slope = b.select(b.eq(b.abs(d), distance), b.sign(d), zero);
  } else if (p == 2) {
    slope = b.select(none, zero, d / distance);
  } else {
    slope = b.sign(d) * power(b.abs(d), p - 1) / power(distance, p - 1);
    slope = b.select(p < 1 ? b.or_(none, b.eq(d, zero)) : none, zero, slope);
  }
  const Value share = slope * along(grad);
  const Value first = put_rows(zeros_like(x), pairs.i, share, 0, Combine::kAdd);
  return {put_rows(first, pairs.j, -share, 0, Combine::kAdd)};
}

}  // namespace

void add_pdist(Entries& t) {
  t.push_back({.name = "_pdist_forward", .lower = lower_pdist_forward, .keyed = {"p"}});
  t.push_back({.name = "_pdist_backward", .lower = lower_pdist_backward, .keyed = {"p"}});
}

}  // namespace torch_tpu::ops
