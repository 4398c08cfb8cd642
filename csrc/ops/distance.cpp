// Pairwise distances between the rows of two matrices (torch.cdist), with the backward.
#include <cmath>

#include "csrc/ops/helpers.h"
#include "csrc/ops/reduce.h"

namespace torch_tpu::ops {
namespace {

// Above this many rows CPU, too, turns Euclidean distances into a matrix product.
constexpr int64_t kManyRows = 25;

Dims batch_of(const Value& x) { return Dims(x.dims().begin(), x.dims().end() - 2); }

Dims joined(Dims dims, std::initializer_list<int64_t> more) {
  dims.insert(dims.end(), more);
  return dims;
}

// x1 [..., P, 1, M] and x2 [..., 1, R, M] against each other; the difference is [..., P, R, M].
// It is never stored: XLA computes it inside the reduction that follows.
Value differences(const Value& x1, const Value& x2) {
  Builder& b = x1.builder();
  const int64_t p = x1.dim(-2), r = x2.dim(-2), m = x1.dim(-1);
  const Dims batch = broadcast_shape(batch_of(x1), batch_of(x2));
  const Dims all = joined(batch, {p, r, m});
  const Value rows = b.reshape(x1, joined(batch_of(x1), {p, 1, m}));
  const Value columns = b.reshape(x2, joined(batch_of(x2), {1, r, m}));
  return b.broadcast_to(rows, all) - b.broadcast_to(columns, all);
}

// |x1|^2 + |x2|^2 - 2 x1.x2, kept from going below zero by rounding.
Value euclidean_by_product(const Value& x1, const Value& x2, const Dims& out) {
  Builder& b = x1.builder();
  const auto square_norm = [&](const Value& x) { return reduce_sum(x * x, {x.rank() - 1}, true); };
  Dims swap = range(x2.rank());
  std::swap(swap[swap.size() - 2], swap.back());
  const Value product = matmul2(x1, b.transpose(x2, swap));
  const Value sum = b.broadcast_to(square_norm(x1), out) +
                    b.broadcast_to(b.transpose(square_norm(x2), swap), out);
  const Value square = sum - product * 2;
  return b.sqrt(nan_maximum(square, zeros_like(square)));
}

Values lower__cdist_forward(Call& c) {
  const Value x1 = c.tensor("x1"), x2 = c.tensor("x2");
  const double p = c.known("p").value_or(2).to_double();
  const int64_t mode = c.integer_or("compute_mode", 0);  // 0: by size, 1: product, 2: never
  if (c.out().numel() == 0) {
    return {full(c.b, 0, c.out().dtype, c.out().dims)};
  }
  const bool many = x1.dim(-2) > kManyRows || x2.dim(-2) > kManyRows;
  if (p == 2 && (mode == 1 || (mode == 0 && many))) {
    return {euclidean_by_product(x1, x2, c.out().dims)};
  }
  const Value d = differences(x1, x2);
  return {p_norm(c.b.abs(d), p, {d.rank() - 1}, false)};
}

// d distance / d difference, up to the factor 1 / distance^(p - 1).
Value slope(const Value& d, const Value& distance, double p) {
  Builder& b = d.builder();
  const Value sign = b.sign(d);
  if (p == 1) {
    return sign;
  }
  if (std::isinf(p)) {
    return b.select(b.eq(b.abs(d), distance), sign, zeros_like(d));
  }
  const Value power = p == 2 ? d : sign * b.power(b.abs(d), b.like(d, p - 1));
  const Value scale = p == 2 ? distance : b.power(distance, b.like(distance, p - 1));
  Value none = b.eq(distance, zeros_like(distance));
  if (p < 1) {
    none = b.or_(none, b.eq(d, zeros_like(d)));
  }
  return b.select(none, zeros_like(d), power / scale);
}

Values lower__cdist_backward(Call& c) {
  Builder& b = c.b;
  const Value x1 = c.tensor("x1");
  const double p = c.known("p").value_or(2).to_double();
  if (p == 0 || c.out().numel() == 0 || c.tensor("grad").numel() == 0) {
    return {full(b, 0, c.out().dtype, c.out().dims)};
  }
  const Value d = differences(x1, c.tensor("x2"));
  Dims pairs = range(d.rank() - 1);
  const auto along = [&](const Value& x) { return b.broadcast_in_dim(x, d.dims(), pairs); };
  const Value grad = slope(d, along(c.tensor("cdist")), p) * along(c.tensor("grad"));
  return {sum_to(reduce_sum(grad, {d.rank() - 2}), c.out().dims)};
}

}  // namespace

void add_distance(Entries& t) {
  t.push_back({.name = "_cdist_forward", .lower = lower__cdist_forward, .keyed = {"p"}});
  t.push_back({.name = "_cdist_backward", .lower = lower__cdist_backward, .keyed = {"p"}});
}

}  // namespace torch_tpu::ops
