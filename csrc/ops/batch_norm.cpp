// Batch normalization: the forms autograd and nn.BatchNorm use, and the pieces nn.SyncBatchNorm
// puts together. Statistics are per channel (dimension 1), in f32 for half types. In evaluation
// the saved statistics are the running ones, as on CUDA and in PyTorch's Meta kernels.
#include "csrc/ops/batch_norm.h"

#include "csrc/ops/helpers.h"

namespace torch_tpu::ops {
namespace {

Dims all_but_channel(const Value& x) { return without(range(x.rank()), {1}); }

// A [C] vector of sums over x, divided by the number of its elements per channel.
Value per_element(const Value& sum, const Value& x) {
  return divide_by_count(sum, x, all_but_channel(x));
}

// The same, divided by one less.
Value per_freedom(const Value& sum, const Value& x) {
  double known = 1;
  for (int64_t dim : all_but_channel(x)) {
    if (x.type().varies(dim)) {
      const Value count = count_of(x, all_but_channel(x), sum.dtype());
      return sum / x.builder().broadcast_to(count - 1, sum.dims());
    }
    known *= static_cast<double>(x.dim(dim));
  }
  return sum / (known - 1);
}

// A [C] vector against x.
Value per_channel(const Value& v, const Value& x) {
  return x.builder().broadcast_in_dim(v, x.dims(), {1});
}

Value channel_sum(const Value& x) { return reduce_sum(x, all_but_channel(x)); }

// A scalar argument against a [C] vector.
Value scalar_like(Call& c, std::string_view name, const Value& v) {
  return c.b.broadcast_to(c.scalar(name, v.dtype()), v.dims());
}

Value reciprocal_deviation(Call& c, const Value& variance) {
  return c.b.rsqrt(variance + scalar_like(c, "eps", variance));
}

Value wide(Call& c, std::string_view name, DType t) {
  const Value x = c.optional_tensor(name);
  return x ? cast(x, t) : x;
}

Value input_of(Call& c) { return cast(c.tensor("input"), opmath(c.dtype("input"))); }

struct Statistics {
  Value mean, square_sum;  // the sum of the squared deviations from the mean
};

Statistics statistics(const Value& x) {
  const Value mean = reduce_mean(x, all_but_channel(x));
  const Value centered = x - per_channel(mean, x);
  return {mean, channel_sum(centered * centered)};
}

// (x - mean) * invstd * weight + bias
Value transform(Call& c, const Value& x, const Value& mean, const Value& invstd) {
  const DType t = x.dtype();
  Value scale = invstd;
  if (const Value weight = wide(c, "weight", t)) {
    scale = scale * weight;
  }
  Value y = (x - per_channel(mean, x)) * per_channel(scale, x);
  if (const Value bias = wide(c, "bias", t)) {
    y = y + per_channel(bias, x);
  }
  return y;
}

// The running statistic after this batch, in its own dtype; undefined when there is none.
Value updated(Call& c, std::string_view name, const Value& batch) {
  const Value running = wide(c, name, batch.dtype());
  if (!running) {
    return running;
  }
  const Value momentum = scalar_like(c, "momentum", batch);
  return cast(momentum * batch + (1 - momentum) * running, c.dtype(name));
}

Values updated_statistics(Call& c, const Value& mean, const Value& unbiased_variance) {
  return {updated(c, "running_mean", mean), updated(c, "running_var", unbiased_variance)};
}

// Returns out, saved mean, saved invstd, running mean, running variance; the last two undefined
// when they do not change.
Values forward(Call& c, bool training) {
  const Value x = input_of(c);
  if (!training) {
    const Value mean = cast(c.tensor("running_mean"), x.dtype());
    const Value invstd = reciprocal_deviation(c, cast(c.tensor("running_var"), x.dtype()));
    return {transform(c, x, mean, invstd), mean, invstd, Value(), Value()};
  }
  const Statistics s = statistics(x);
  const Value invstd = reciprocal_deviation(c, per_element(s.square_sum, x));
  Values result = {transform(c, x, s.mean, invstd), s.mean, invstd, Value(), Value()};
  if (c.has("running_mean")) {
    const Values running = updated_statistics(c, s.mean, per_freedom(s.square_sum, x));
    result[3] = running[0];
    result[4] = running[1];
  }
  return result;
}

Values lower_native_batch_norm(Call& c) { return forward(c, c.flag("training")); }

Values lower_native_batch_norm_no_stats(Call& c) {
  Values result = forward(c, true);
  result.resize(3);
  return result;
}

Values lower_native_batch_norm_no_training(Call& c) {
  Values result = forward(c, false);
  result.resize(3);
  return result;
}

// As outputs, the running statistics are always there.
Values lower_native_batch_norm_functional(Call& c) {
  Values result = forward(c, c.flag_or("training", true));
  if (!result[3]) {
    result[3] = c.tensor("running_mean");
    result[4] = c.tensor("running_var");
  }
  return result;
}

// The `reserve` output is cuDNN's workspace; nobody else has one.
Values with_reserve(Call& c, Values result) {
  result.insert(result.begin() + 3, full(c.b, 0, DType::kU8, {0}));
  return result;
}

Values lower__batch_norm_with_update(Call& c) { return with_reserve(c, forward(c, true)); }

Values lower__batch_norm_with_update_functional(Call& c) {
  return with_reserve(c, lower_native_batch_norm_functional(c));
}

Values lower_batch_norm_update_stats(Call& c) {
  const Value x = input_of(c);
  const Statistics s = statistics(x);
  const DType t = c.has("running_mean") ? c.dtype("running_mean") : c.dtype("input");
  const Values running = updated_statistics(c, s.mean, per_freedom(s.square_sum, x));
  return {cast(s.mean, t), cast(per_element(s.square_sum, x), t), running[0], running[1]};
}

// --- backward -----------------------------------------------------------------------------------

Value weighted(Call& c, const Value& invstd) {
  const Value weight = wide(c, "weight", invstd.dtype());
  return weight ? invstd * weight : invstd;
}

// The part of grad that a shift or a scaling of the whole channel undoes is removed: its mean, and
// its projection on the centered input.
Value input_gradient(Call& c, const Value& grad, const Value& centered, const Value& invstd,
                     const Value& mean_grad, const Value& mean_product) {
  const Value slope = invstd * invstd * mean_product;
  return (grad - per_channel(mean_grad, grad) - centered * per_channel(slope, grad)) *
         per_channel(weighted(c, invstd), grad);
}

Values backward(Call& c, std::string_view saved_invstd, bool training) {
  const Value x = input_of(c);
  const DType t = x.dtype();
  const Value grad = cast(c.tensor("grad_out"), t);
  const Value mean = cast(c.tensor(training ? "save_mean" : "running_mean"), t);
  const Value invstd = training ? cast(c.tensor(saved_invstd), t)
                                : reciprocal_deviation(c, cast(c.tensor("running_var"), t));
  const Value centered = x - per_channel(mean, x);
  const Value grad_sum = channel_sum(grad);
  const Value product_sum = channel_sum(centered * grad);
  const std::vector<bool> mask = c.flags("output_mask");
  Values result(3);
  if (mask[0] && training) {
    result[0] = input_gradient(c, grad, centered, invstd, per_element(grad_sum, x),
                               per_element(product_sum, x));
  } else if (mask[0]) {
    result[0] = grad * per_channel(weighted(c, invstd), grad);
  }
  if (mask[1]) {
    result[1] = product_sum * invstd;
  }
  if (mask[2]) {
    result[2] = grad_sum;
  }
  return result;
}

Values lower_native_batch_norm_backward(Call& c) {
  return backward(c, "save_invstd", c.flag("train"));
}

Values lower_batch_norm_backward(Call& c) { return backward(c, "save_var", c.flag("update")); }

// --- pieces of nn.SyncBatchNorm
// -------------------------------------------------------------------

Values lower_batch_norm_stats(Call& c) {
  const Value x = input_of(c);
  const Statistics s = statistics(x);
  return {s.mean, reciprocal_deviation(c, per_element(s.square_sum, x))};
}

Values lower_batch_norm_elemt(Call& c) {
  const Value x = input_of(c);
  const DType t = x.dtype();
  const Value y = transform(c, x, cast(c.tensor("mean"), t), cast(c.tensor("invstd"), t));
  return {cast(y, c.dtype("input"))};
}

// Statistics of `counts` elements each, one row per process, become those of all elements.
Values gather_stats(Call& c, const Value& counts) {
  Builder& b = c.b;
  const Value means = cast(c.tensor("mean"), opmath(c.dtype("mean")));
  const Value invstds = cast(c.tensor("invstd"), means.dtype());
  const Value rows = b.broadcast_in_dim(cast(counts, means.dtype()), means.dims(), {0});
  const Value total = reduce_sum(rows, {0});
  const Value mean = reduce_sum(means * rows, {0}) / total;
  const Value off = means - b.broadcast_to(mean, means.dims());
  const Value variances = 1 / (invstds * invstds) - scalar_like(c, "eps", means);
  const Value square_sum = reduce_sum((variances + off * off) * rows, {0});
  const Values running = updated_statistics(c, mean, square_sum / (total - 1));
  return {mean, reciprocal_deviation(c, square_sum / total), running[0], running[1]};
}

Values lower_batch_norm_gather_stats(Call& c) {
  const Dims rows = {c.tensor("mean").dim(0)};
  return gather_stats(c, full(c.b, c.integer("count"), DType::kF32, rows));
}

Values lower_batch_norm_gather_stats_with_counts(Call& c) {
  const Value counts = c.tensor("counts");
  return gather_stats(c, c.b.reshape(counts, {counts.numel()}));
}

Values lower_batch_norm_backward_reduce(Call& c) {
  const Value x = input_of(c);
  const DType t = x.dtype();
  const Value grad = cast(c.tensor("grad_out"), t);
  const Value centered = x - per_channel(cast(c.tensor("mean"), t), x);
  const Value grad_sum = channel_sum(grad);
  const Value product_sum = channel_sum(centered * grad);
  const DType weight_type = c.has("weight") ? c.dtype("weight") : t;
  Values result(4);
  if (c.flag("input_g")) {
    result[0] = grad_sum;
    result[1] = product_sum;
  }
  if (c.flag("weight_g")) {
    result[2] = cast(product_sum * cast(c.tensor("invstd"), t), weight_type);
  }
  if (c.flag("bias_g")) {
    result[3] = cast(grad_sum, weight_type);
  }
  return result;
}

Values lower_batch_norm_backward_elemt(Call& c) {
  const Value x = input_of(c);
  const DType t = x.dtype();
  const Value grad = cast(c.tensor("grad_out"), t);
  const Value centered = x - per_channel(cast(c.tensor("mean"), t), x);
  const Value count = c.tensor("count");
  const Value sum_dy = cast(c.tensor("sum_dy"), t);
  const Value total =
      c.b.broadcast_to(reduce_sum(cast(count, t), range(count.rank())), sum_dy.dims());
  const Value mean_product = cast(c.tensor("sum_dy_xmu"), t) / total;
  const Value invstd = cast(c.tensor("invstd"), t);
  const Value result = input_gradient(c, grad, centered, invstd, sum_dy / total, mean_product);
  return {cast(result, c.dtype("input"))};
}

}  // namespace

void add_batch_norm(Entries& t) {
  const std::vector<std::string_view> running = {"running_mean", "running_var"};
  t.push_back({.name = "native_batch_norm", .lower = lower_native_batch_norm, .writes = running});
  t.push_back({.name = "_native_batch_norm_legit", .lower = lower_native_batch_norm});
  t.push_back(
      {.name = "_native_batch_norm_legit.no_stats", .lower = lower_native_batch_norm_no_stats});
  t.push_back({.name = "_native_batch_norm_legit_no_training",
               .lower = lower_native_batch_norm_no_training});
  t.push_back(
      {.name = "_native_batch_norm_legit_functional", .lower = lower_native_batch_norm_functional});
  t.push_back({.name = "_batch_norm_with_update", .lower = lower__batch_norm_with_update});
  t.push_back({.name = "_batch_norm_with_update_functional",
               .lower = lower__batch_norm_with_update_functional});
  t.push_back({.name = "native_batch_norm_backward", .lower = lower_native_batch_norm_backward});
  t.push_back({.name = "batch_norm_backward", .lower = lower_batch_norm_backward});

  t.push_back({.name = "batch_norm_update_stats",
               .lower = lower_batch_norm_update_stats,
               .writes = running,
               .no_meta = true});
  t.push_back({.name = "batch_norm_stats", .lower = lower_batch_norm_stats, .no_meta = true});
  t.push_back({.name = "batch_norm_elemt", .lower = lower_batch_norm_elemt, .no_meta = true});
  t.push_back({.name = "batch_norm_gather_stats",
               .lower = lower_batch_norm_gather_stats,
               .writes = running,
               .no_meta = true});
  t.push_back({.name = "batch_norm_gather_stats_with_counts",
               .lower = lower_batch_norm_gather_stats_with_counts,
               .writes = running,
               .no_meta = true});
  t.push_back({.name = "batch_norm_backward_reduce",
               .lower = lower_batch_norm_backward_reduce,
               .no_meta = true});
  t.push_back({.name = "batch_norm_backward_elemt",
               .lower = lower_batch_norm_backward_elemt,
               .no_meta = true});
}

}  // namespace torch_tpu::ops
