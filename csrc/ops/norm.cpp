// Layer, group and RMS normalization with their backwards, and renorm. Batch normalization is in
// batch_norm.cpp. Statistics and sums are kept in f32 for half types.
#include <limits>

#include "csrc/ops/batch_norm.h"
#include "csrc/ops/helpers.h"
#include "csrc/ops/reduce.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

Value broadcast(const Value& x, const Dims& dims) { return x.builder().broadcast_to(x, dims); }

// 1 / sqrt(mean square over `dims`, after subtracting `mean` if there is one, + eps), keepdim.
Value reciprocal_deviation(const Value& centered, const Dims& dims, const Value& eps) {
  const Value mean_square = reduce_mean(centered * centered, dims, true);
  return centered.builder().rsqrt(mean_square + broadcast(eps, mean_square.dims()));
}

// The gradient of (x - mean) * rstd: `grad` is what arrives at the normalized value. Without
// `remove_mean` that of x * rstd (RMS).
Value normalized_backward(const Value& grad, const Value& normalized, const Value& rstd,
                          const Dims& dims, bool remove_mean) {
  const Dims& shape = grad.dims();
  const Value along = broadcast(reduce_mean(grad * normalized, dims, true), shape);
  Value result = grad - normalized * along;
  if (remove_mean) {
    result = result - broadcast(reduce_mean(grad, dims, true), shape);
  }
  return result * broadcast(rstd, shape);
}

// --- layer norm and RMS norm: over the last dimensions ------------------------------------------

struct Split {
  Dims outer, inner;  // positions of the batch and of the normalized dimensions
};

Split split_dims(Call& c, int64_t rank) {
  const int64_t count = static_cast<int64_t>(c.ints("normalized_shape").size());
  Split s;
  for (int64_t i = 0; i < rank; ++i) {
    (i < rank - count ? s.outer : s.inner).push_back(i);
  }
  return s;
}

Value wide(Call& c, std::string_view name, DType t) {
  const Value x = c.optional_tensor(name);
  return x ? cast(x, t) : x;
}

Values lower_native_layer_norm(Call& c) {
  const Value x = cast(c.tensor("input"), opmath(c.dtype("input")));
  const DType t = x.dtype();
  const Dims inner = split_dims(c, x.rank()).inner;
  const Value mean = reduce_mean(x, inner, true);
  const Value centered = x - broadcast(mean, x.dims());
  const Value rstd = reciprocal_deviation(centered, inner, c.scalar("eps", t));
  Value y = centered * broadcast(rstd, x.dims());
  if (const Value weight = wide(c, "weight", t)) {
    y = y * broadcast(weight, x.dims());
  }
  if (const Value bias = wide(c, "bias", t)) {
    y = y + broadcast(bias, x.dims());
  }
  return {y, mean, rstd};
}

Values lower_native_layer_norm_backward(Call& c) {
  const Value x = cast(c.tensor("input"), opmath(c.dtype("input")));
  const DType t = x.dtype();
  const Value grad = cast(c.tensor("grad_out"), t);
  const Split dims = split_dims(c, x.rank());
  const Value rstd = cast(c.tensor("rstd"), t);
  const Value mean = broadcast(cast(c.tensor("mean"), t), x.dims());
  const Value normalized = (x - mean) * broadcast(rstd, x.dims());
  const std::vector<bool> mask = c.flags("output_mask");
  const Value weight = wide(c, "weight", t);
  Values result(3);
  if (mask[0]) {
    const Value g = weight ? grad * broadcast(weight, x.dims()) : grad;
    result[0] = normalized_backward(g, normalized, rstd, dims.inner, true);
  }
  if (mask[1] && weight) {
    result[1] = reduce_sum(grad * normalized, dims.outer);
  }
  if (mask[2] && c.has("bias")) {
    result[2] = reduce_sum(grad, dims.outer);
  }
  return result;
}

Values lower__fused_rms_norm(Call& c) {
  const Value x = cast(c.tensor("input"), opmath(c.dtype("input")));
  const DType t = x.dtype();
  const double epsilon = t == DType::kF64 ? std::numeric_limits<double>::epsilon()
                                          : std::numeric_limits<float>::epsilon();
  const Value eps = c.has("eps") ? c.scalar("eps", t) : c.b.scalar(epsilon, t);
  const Value rstd = reciprocal_deviation(x, split_dims(c, x.rank()).inner, eps);
  Value y = x * broadcast(rstd, x.dims());
  if (const Value weight = wide(c, "weight", t)) {
    y = y * broadcast(weight, x.dims());
  }
  return {y, rstd};
}

Values lower__fused_rms_norm_backward(Call& c) {
  const Value x = cast(c.tensor("input"), opmath(c.dtype("input")));
  const DType t = x.dtype();
  const Value grad = cast(c.tensor("grad_out"), t);
  const Split dims = split_dims(c, x.rank());
  const Value rstd = cast(c.tensor("rstd"), t);
  const Value normalized = x * broadcast(rstd, x.dims());
  const std::vector<bool> mask = c.flags("output_mask");
  const Value weight = wide(c, "weight", t);
  Values result(2);
  if (mask[0]) {
    const Value g = weight ? grad * broadcast(weight, x.dims()) : grad;
    result[0] = normalized_backward(g, normalized, rstd, dims.inner, false);
  }
  if (mask[1] && weight) {
    result[1] = reduce_sum(grad * normalized, dims.outer);
  }
  return result;
}

// --- group norm: [N, C, ...] seen as [N, group, C / group, HxW] ----------------------------------

const Dims kInGroup = {2, 3};

Dims grouped_shape(Call& c) {
  const int64_t group = c.integer("group");
  return {c.integer("N"), group, c.integer("C") / group, c.integer("HxW")};
}

// A value per channel against the grouped form.
Value per_channel(const Value& x, const Dims& grouped) {
  Builder& b = x.builder();
  return b.broadcast_in_dim(b.reshape(x, {grouped[1], grouped[2]}), grouped, {1, 2});
}

// A value per sample and group against the grouped form, with ones for the rest.
Value per_group(const Value& x) { return x.builder().reshape(x, {x.dim(0), x.dim(1), 1, 1}); }

Values lower_native_group_norm(Call& c) {
  Builder& b = c.b;
  const Value input = c.tensor("input");
  const DType t = opmath(input.dtype());
  const Dims shape = grouped_shape(c);
  const Value x = b.reshape(cast(input, t), shape);
  const Value mean = reduce_mean(x, kInGroup, true);
  const Value centered = x - broadcast(mean, shape);
  const Value rstd = reciprocal_deviation(centered, kInGroup, c.scalar("eps", t));
  Value y = centered * broadcast(rstd, shape);
  if (const Value weight = wide(c, "weight", t)) {
    y = y * per_channel(weight, shape);
  }
  if (const Value bias = wide(c, "bias", t)) {
    y = y + per_channel(bias, shape);
  }
  const Dims stats = {shape[0], shape[1]};
  return {b.reshape(y, input.dims()), b.reshape(mean, stats), b.reshape(rstd, stats)};
}

Values lower_native_group_norm_backward(Call& c) {
  Builder& b = c.b;
  const Value input = c.tensor("input");
  const DType t = opmath(input.dtype());
  const Dims shape = grouped_shape(c);
  const Value x = b.reshape(cast(input, t), shape);
  const Value grad = b.reshape(cast(c.tensor("grad_out"), t), shape);
  const Value mean = per_group(cast(c.tensor("mean"), t));
  const Value rstd = per_group(cast(c.tensor("rstd"), t));
  const Value normalized = (x - broadcast(mean, shape)) * broadcast(rstd, shape);
  const std::vector<bool> mask = c.flags("output_mask");
  const Dims channels = {c.integer("C")};
  Values result(3);
  if (mask[0]) {
    const Value weight = wide(c, "weight", t);
    const Value g = weight ? grad * per_channel(weight, shape) : grad;
    result[0] = b.reshape(normalized_backward(g, normalized, rstd, kInGroup, true), input.dims());
  }
  if (mask[1]) {
    result[1] = b.reshape(reduce_sum(grad * normalized, {0, 3}), channels);
  }
  if (mask[2]) {
    result[2] = b.reshape(reduce_sum(grad, {0, 3}), channels);
  }
  return result;
}

// Scales the slices along `dim` whose p-norm is above maxnorm.
Values lower_renorm(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const Value x = cast(self, opmath(self.dtype()));
  const Dims dims = without(range(x.rank()), {wrap_dim(c.integer("dim"), x.rank())});
  const Value norm = p_norm(b.abs(x), c.known("p").value_or(2).to_double(), dims, true);
  const Value limit = broadcast(c.scalar("maxnorm", norm.dtype()), norm.dims());
  const Value scale = b.select(b.gt(norm, limit), limit / (norm + 1e-7), ones_like(norm));
  return {x * broadcast(cast(scale, x.dtype()), x.dims())};
}

}  // namespace

void add_norm(Entries& t) {
  // eps never changes: as a constant it lets the compiler share the kernels of all norms.
  t.push_back({.name = "native_layer_norm", .lower = lower_native_layer_norm, .keyed = {"eps"}});
  t.push_back({.name = "native_layer_norm_backward", .lower = lower_native_layer_norm_backward});
  t.push_back({.name = "_fused_rms_norm", .lower = lower__fused_rms_norm});
  t.push_back({.name = "_fused_rms_norm_backward", .lower = lower__fused_rms_norm_backward});
  t.push_back({.name = "native_group_norm", .lower = lower_native_group_norm});
  t.push_back({.name = "native_group_norm_backward", .lower = lower_native_group_norm_backward});
  t.push_back({.name = "renorm", .lower = lower_renorm, .keyed = {"p"}, .checks_numbers = true});
  add_batch_norm(t);
}

}  // namespace torch_tpu::ops
