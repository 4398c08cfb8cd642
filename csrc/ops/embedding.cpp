// Embedding lookups and bags, with their gradients.
#include <cmath>
#include <string>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

constexpr int64_t kMean = 1, kMax = 2;  // mode of embedding_bag; 0 is sum

Value flatten(const Value& x) { return x.builder().reshape(x, {x.numel()}); }

// `index` with `padding_idx` (when there is one) replaced by -1, which writes drop.
Value drop_padding(const Value& index, int64_t padding_idx) {
  if (padding_idx < 0) return index;
  Builder& b = index.builder();
  const Value is_padding = b.eq(index, b.like(index, padding_idx));
  return b.select(is_padding, b.like(index, -1), index);
}

// Multiplies the rows of x [n, d] by factors [n].
Value scale_rows(const Value& x, const Value& factors) {
  return x.builder().multiply(x, x.builder().broadcast_in_dim(factors, x.dims(), {0}));
}

// How often each element of `index` [n] occurs in it, as `dtype`; index values are below `size`.
Value frequencies(const Value& index, int64_t size, DType dtype) {
  Builder& b = index.builder();
  const Value counts = put_rows(full(b, 0, DType::kS32, {size}), index,
                                full(b, 1, DType::kS32, index.dims()), 0, Combine::kAdd);
  return b.convert(take_rows(counts, index, 0), dtype);
}

// Sums the rows of grad [n, d] into [num_weights, d]. A negative index is dropped.
Value sum_rows(const Value& grad, const Value& index, int64_t num_weights) {
  const Value zeros = full(grad.builder(), 0, grad.dtype(), {num_weights, grad.dim(1)});
  return put_rows(zeros, index, grad, 0, Combine::kAdd);
}

Values lower_embedding(Call& c) {
  const Value weight = c.tensor("weight");
  const Value indices = c.tensor("indices");
  check_index_into(c, weight, 0, indices, "index out of range in self");
  return {take_rows(weight, plain_index(indices, weight.dim(0)), 0)};
}

Values lower_embedding_dense_backward(Call& c) {
  Builder& b = c.b;
  const int64_t num_weights = c.integer("num_weights");
  const Value index = flatten(plain_index(c.tensor("indices"), num_weights));
  const Value grad_output = c.tensor("grad_output");
  const int64_t width = c.out().dims.at(1);
  Value grad =
      b.reshape(b.convert(grad_output, opmath(grad_output.dtype())), {index.numel(), width});
  if (c.flag("scale_grad_by_freq") && index.numel() > 0) {
    const Value counts = frequencies(index, num_weights, grad.dtype());
    grad = b.divide(grad, b.broadcast_in_dim(counts, grad.dims(), {0}));
  }
  return {sum_rows(grad, drop_padding(index, c.integer("padding_idx")), num_weights)};
}

// The p-norm of each row of x [rows, width].
Value row_norms(const Value& x, double p) {
  Builder& b = x.builder();
  if (p == 2) return b.sqrt(reduce_sum(b.multiply(x, x), {1}));
  if (p == 1) return reduce_sum(b.abs(x), {1});
  if (std::isinf(p)) return reduce_max(b.abs(x), {1});
  const Value sum = reduce_sum(b.power(b.abs(x), b.like(x, p)), {1});
  return b.power(sum, b.like(sum, 1 / p));
}

// Scales down the rows named by `indices` whose norm is above max_norm.
Values lower_embedding_renorm(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const Value indices = c.tensor("indices");
  const int64_t rows = self.dim(0);
  c.check_index(indices, 0, rows, "index out of range in self");
  const Value x = b.convert(self, opmath(self.dtype()));
  const Value norm = row_norms(x, c.known("norm_type").value().to_double());
  const Value max_norm = b.broadcast_to(c.scalar("max_norm", x.dtype()), {rows});
  const Value index = flatten(plain_index(indices, rows));
  const Value named = put_rows(full(b, 0, DType::kBool, {rows}), index,
                               full(b, 1, DType::kBool, index.dims()), 0, Combine::kSet);
  const Value too_long = b.and_(named, b.gt(norm, max_norm));
  const Value factor = b.select(too_long, b.divide(max_norm, norm + 1e-7), ones_like(norm));
  return {scale_rows(x, factor)};
}

// --- bags ----------------------------------------------------------------------------------------

// Returns (output, offset2bag, bag_size, max_indices); bag b is indices[offsets[b]:offsets[b + 1]].
// Entries equal to padding_idx count for nothing.
Values lower_embedding_bag(Call& c) {
  Builder& b = c.b;
  const Value weight = c.tensor("weight");
  const Value indices = c.tensor("indices");
  const Value offsets = c.tensor("offsets");
  const int64_t mode = c.integer("mode");
  const int64_t n = indices.numel();
  const int64_t num_bags = c.out(0).dims.at(0);
  const int64_t width = weight.dim(1);
  const DType t = opmath(weight.dtype());

  c.check_range(indices, 0, weight.dim(0),
                "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be {}");
  if (offsets.numel() > 0) {
    c.check_range(b.slice(offsets, {0}, {1}), 0, 1,
                  "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start "
                  "from position 0. However, got {}");
    c.check_range(offsets, 0, n + 1,
                  "offsets[-1] can not be greater than input's length (" + std::to_string(n) +
                      "), but got offsets[-1] of {}");
  }

  const Value index = plain_index(indices, weight.dim(0));
  const Value bag = segment_ids(b.slice(offsets, {0}, {num_bags}), n);
  // Where a row goes: its bag, or nowhere for padding.
  const Value padded = drop_padding(index, c.integer("padding_idx"));
  const Value target = b.select(b.lt(padded, zeros_like(padded)), b.like(bag, -1), bag);
  Value rows = b.convert(take_rows(weight, index, 0), t);
  if (const Value factors = c.optional_tensor("per_sample_weights")) {
    rows = scale_rows(rows, b.convert(factors, t));
  }
  const Value size = put_rows(full(b, 0, DType::kS32, {num_bags}), target,
                              full(b, 1, DType::kS32, {n}), 0, Combine::kAdd);

  Value output;
  Value max_indices = full(b, 0, DType::kS64, c.out(3).dims);
  if (mode == kMax) {
    const Value lowest = b.broadcast_to(b.lowest(t), {num_bags, width});
    const Value best = put_rows(lowest, target, rows, 0, Combine::kMax);
    const Value empty = b.broadcast_in_dim(b.eq(size, zeros_like(size)), best.dims(), {0});
    output = b.select(empty, zeros_like(best), best);
    // The first row that holds the maximum, per bag and column.
    const Type positions(DType::kS32, {n, width});
    const Value is_best = b.eq(rows, take_rows(best, bag, 0));
    const Value candidates = b.select(is_best, b.iota(positions, 0), b.splat_int(n, positions));
    const Value first =
        put_rows(full(b, n, DType::kS32, {num_bags, width}), target, candidates, 0, Combine::kMin);
    max_indices = b.select(empty, b.like(first, 0), take_rows(index, first, 0));
  } else {
    output = sum_rows(rows, target, num_bags);
    if (mode == kMean) {
      const Value count = b.convert(b.maximum(size, ones_like(size)), t);
      output = b.divide(output, b.broadcast_in_dim(count, output.dims(), {0}));
    }
  }
  // With include_last_offset there is one offset more than there are bags.
  const int64_t sizes = c.out(2).dims.at(0);
  const Value bag_size = b.pad(size, b.scalar(0, DType::kS32), {0}, {sizes - num_bags});
  return {output, c.out(1).dims.at(0) == n ? bag : full(b, 0, DType::kS32, c.out(1).dims), bag_size,
          max_indices};
}

// The gradient of the weights. `offset2bag` and `bag_size` are ours, from the forward.
Values lower_embedding_bag_dense_backward(Call& c) {
  Builder& b = c.b;
  const int64_t num_weights = c.integer("num_weights");
  const int64_t mode = c.integer("mode");
  const Value grad_bags = c.tensor("grad");
  const Value grad = b.convert(grad_bags, opmath(grad_bags.dtype()));
  const int64_t num_bags = grad.dim(0);
  const Value bag_size = b.slice(c.tensor("bag_size"), {0}, {num_bags});
  if (mode == kMax) {
    // Column j of bag i goes to the row that won there; an empty bag has no winner.
    const Value winners = plain_index(c.tensor("maximum_indices"), num_weights);
    const Value empty = b.broadcast_in_dim(b.eq(bag_size, zeros_like(bag_size)), grad.dims(), {0});
    const Value target = b.select(empty, b.like(winners, -1), winners);
    return {put_along(full(b, 0, grad.dtype(), {num_weights, grad.dim(1)}), target, grad, 0,
                      Combine::kAdd)};
  }

  const Value index = plain_index(c.tensor("indices"), num_weights);
  const Value bag = plain_index(c.tensor("offset2bag"), num_bags);
  Value rows = take_rows(grad, bag, 0);
  const auto divide_by = [&](const Value& counts) {
    rows = b.divide(rows, b.broadcast_in_dim(counts, rows.dims(), {0}));
  };
  if (mode == kMean) {
    const Value size = take_rows(bag_size, bag, 0);
    divide_by(b.convert(b.maximum(size, ones_like(size)), rows.dtype()));
  }
  if (const Value factors = c.optional_tensor("per_sample_weights")) {
    rows = scale_rows(rows, b.convert(factors, rows.dtype()));
  }
  if (c.flag("scale_grad_by_freq") && index.numel() > 0) {
    divide_by(frequencies(index, num_weights, rows.dtype()));
  }
  return {sum_rows(rows, drop_padding(index, c.integer("padding_idx")), num_weights)};
}

Values lower_embedding_bag_per_sample_weights_backward(Call& c) {
  Builder& b = c.b;
  const Value weight = c.tensor("weight");
  const Value grad = c.tensor("grad");
  const DType t = opmath(grad.dtype());
  const Value index = plain_index(c.tensor("indices"), weight.dim(0));
  const Value bag = plain_index(c.tensor("offset2bag"), grad.dim(0));
  const Value rows = b.convert(take_rows(weight, index, 0), t);
  const Value grads = b.convert(take_rows(grad, bag, 0), t);
  const Value dots = reduce_sum(b.multiply(rows, grads), {1});
  const Value padded = drop_padding(index, c.integer("padding_idx"));
  return {b.select(b.lt(padded, zeros_like(padded)), zeros_like(dots), dots)};
}

}  // namespace

void add_embedding(Entries& t) {
  t.push_back({.name = "embedding", .lower = lower_embedding});
  t.push_back({.name = "embedding_dense_backward", .lower = lower_embedding_dense_backward});
  t.push_back(
      {.name = "embedding_renorm", .lower = lower_embedding_renorm, .keyed = {"norm_type"}});
  t.push_back({.name = "_embedding_bag", .lower = lower_embedding_bag});
  t.push_back({.name = "_embedding_bag_forward_only", .lower = lower_embedding_bag});
  t.push_back({.name = "_embedding_bag_backward",
               .lower = lower_embedding_bag_dense_backward,
               .internal = true});  // a sparse one is none of ours
  t.push_back(
      {.name = "_embedding_bag_dense_backward", .lower = lower_embedding_bag_dense_backward});
  t.push_back({.name = "_embedding_bag_per_sample_weights_backward",
               .lower = lower_embedding_bag_per_sample_weights_backward});
}

}  // namespace torch_tpu::ops
