// Losses and their backwards. Those over class indices (nll, margin) come first, elementwise ones
// after. Cross entropy, l1 and kl_div are ATen's own compositions of these and other families.
#include <stdexcept>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

enum Reduce : int64_t { kNone = 0, kMean = 1, kSum = 2 };

Value broadcast(const Value& x, const Dims& dims) { return x.builder().broadcast_to(x, dims); }

Value reduced(Call& c, const Value& loss) {
  switch (c.integer("reduction")) {
    case kMean:
      return reduce_mean(loss, range(loss.rank()));
    case kSum:
      return reduce_sum(loss, range(loss.rank()));
    default:
      return loss;
  }
}

// grad_output against the input: a scalar unless nothing was reduced, divided by what a mean
// divided by.
Value grad_against(Call& c, const Value& x) {
  const Value grad = broadcast(cast(c.tensor("grad_output"), x.dtype()), x.dims());
  if (c.integer("reduction") != kMean) {
    return grad;
  }
  return divide_by_count(grad, x, range(x.rank()));
}

// --- nll_loss: classes in dimension 1, or in dimension 0 without a batch ------------------------

struct Nll {
  Value x;        // [N, C, S]
  Value target;   // [N, S], ignored ones set to 0
  Value ignored;  // [N, S]
  Value weight;   // [N, S]: of the target's class, 0 where ignored
};

Nll nll(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const DType t = opmath(self.dtype());
  const Value given = c.tensor("target");
  if (given.dtype() != DType::kS64 && given.dtype() != DType::kU8) {
    throw std::invalid_argument("[nll_loss] expected a target of int64 or uint8");
  }
  if (c.has("weight") && c.dtype("weight") != c.dtype("self")) {
    throw std::invalid_argument("[nll_loss] expected weights of the input's dtype");
  }
  const bool batched = self.rank() > 1;
  const int64_t n = batched ? self.dim(0) : 1;
  const int64_t classes = self.dim(batched ? 1 : 0);
  const int64_t places = n == 0 ? 0 : given.numel() / n;
  expect_whole(self, {batched ? 1 : 0}, "nll_loss");

  const Value raw = cast(b.reshape(given, {n, places}), DType::kS64);
  const Value ignored = b.eq(raw, b.splat_int(c.integer("ignore_index"), raw.type()));
  const Value checked = b.select(ignored, zeros_like(raw), raw);
  c.check_index(checked, 0, classes, "Target {} is out of bounds.");
  Nll result{
      b.reshape(cast(self, t), {n, classes, places}), plain_index(checked, classes), ignored, {}};
  Value weight = full(b, 1, t, {n, places});
  if (const Value weights = c.optional_tensor("weight")) {
    weight = take_rows(cast(weights, t), result.target, 0);
  }
  result.weight = b.select(ignored, zeros_like(weight), weight);
  return result;
}

Values lower_nll_loss_forward(Call& c) {
  Builder& b = c.b;
  const Nll v = nll(c);
  const DType t = v.x.dtype();
  const int64_t reduction = c.integer("reduction");
  const Dims index = {v.target.dim(0), 1, v.target.dim(1)};
  const Value picked = take_along(v.x, b.reshape(v.target, index), 1);
  // Selected, not only multiplied by a weight of 0: an ignored place may hold an infinity.
  const Value loss =
      b.select(v.ignored, zeros_like(v.weight), -b.reshape(picked, v.weight.dims()) * v.weight);
  if (reduction == kNone && c.tensor("self").rank() > 1) {
    return {b.reshape(loss, c.out().dims), b.scalar(0, t)};
  }
  const Value sum = reduce_sum(loss, {0, 1});
  const Value total_weight = reduce_sum(v.weight, {0, 1});
  return {reduction == kMean ? sum / total_weight : sum, total_weight};
}

Values lower_nll_loss_backward(Call& c) {
  Builder& b = c.b;
  const Nll v = nll(c);
  const DType t = v.x.dtype();
  Value grad = cast(c.tensor("grad_output"), t);
  if (grad.numel() == 1) {
    grad = b.broadcast_to(b.reshape(grad, {}), v.weight.dims());
  }
  grad = -b.reshape(grad, v.weight.dims()) * v.weight;
  if (c.integer("reduction") == kMean) {
    grad = grad / broadcast(cast(c.tensor("total_weight"), t), grad.dims());
  }
  const Dims& dims = v.x.dims();
  const Value classes = b.iota(Type(v.target.dtype(), dims), 1);
  const Value hit = b.eq(classes, b.broadcast_in_dim(v.target, dims, {0, 2}));
  // An all-ignored batch has a total weight of 0; what is ignored still gets 0, not NaN.
  grad = b.select(v.ignored, zeros_like(grad), grad);
  const Value result = b.select(hit, b.broadcast_in_dim(grad, dims, {0, 2}), full(b, 0, t, dims));
  return {b.reshape(result, c.tensor("self").dims())};
}

// --- margin losses over classes: [N, C], or [C] without a batch ----------------------------------

struct Rows {
  Value x;       // [N, C]
  Value target;  // [N] or [N, C], s32 or s64
  int64_t n, classes;
};

Rows rows(Call& c) {
  const Value self = c.tensor("self");
  const int64_t n = self.rank() > 1 ? self.dim(0) : 1;
  const int64_t classes = n == 0 ? self.dim(1) : self.numel() / n;
  const Value target = c.tensor("target");
  const Dims target_dims = target.numel() == n ? Dims{n} : Dims{n, classes};
  return {c.b.reshape(cast(self, opmath(self.dtype())), {n, classes}),
          c.b.reshape(target, target_dims), n, classes};
}

// grad_output per row, divided by what the loss was divided by.
Value row_grad(Call& c, const Rows& r) {
  Value grad = cast(c.tensor("grad_output"), r.x.dtype());
  grad = grad.numel() == 1 ? c.b.broadcast_to(c.b.reshape(grad, {}), {r.n}) : grad;
  const bool mean = c.integer("reduction") == kMean;
  return grad / (r.classes * (mean ? r.n : 1));
}

struct MultiMargin {
  Rows r;
  Value hit;     // [N, C]: the target's class
  Value slack;   // [N, C]: how far each other class is inside the margin, 0 if it is not
  Value weight;  // [N]
};

// Zero where it is not above zero, NaN included: CPU's loop adds only what is.
Value positive(const Value& x) {
  const Value zero = zeros_like(x);
  return x.builder().select(x.builder().gt(x, zero), x, zero);
}

MultiMargin multi_margin(Call& c) {
  Builder& b = c.b;
  MultiMargin m{rows(c), {}, {}, {}};
  const Value& x = m.r.x;
  c.check_range(m.r.target, 0, m.r.classes, "target out of range");
  const Value target = plain_index(m.r.target, m.r.classes);
  const Value classes = b.iota(Type(target.dtype(), x.dims()), 1);
  m.hit = b.eq(classes, b.broadcast_in_dim(target, x.dims(), {0}));
  const Value own = reduce_sum(b.select(m.hit, x, zeros_like(x)), {1}, true);
  const Value margin = broadcast(c.scalar("margin", x.dtype()), x.dims());
  const Value slack = positive(margin - broadcast(own, x.dims()) + x);
  m.slack = b.select(m.hit, zeros_like(x), slack);
  if (const Value weights = c.optional_tensor("weight")) {
    m.weight = take_rows(cast(weights, x.dtype()), target, 0);
  } else {
    m.weight = full(b, 1, x.dtype(), {m.r.n});
  }
  return m;
}

Values lower_multi_margin_loss(Call& c) {
  const MultiMargin m = multi_margin(c);
  const bool squared = c.known("p").value_or(1) == 2;
  const Value sums = reduce_sum(squared ? m.slack * m.slack : m.slack, {1});
  const Value loss = sums * m.weight / m.r.classes;
  return {c.b.reshape(reduced(c, loss), c.out().dims)};
}

Values lower_multi_margin_loss_backward(Call& c) {
  Builder& b = c.b;
  const MultiMargin m = multi_margin(c);
  const Value& x = m.r.x;
  const bool squared = c.known("p").value_or(1) == 2;
  const Value active = cast(b.gt(m.slack, zeros_like(x)), x.dtype());
  const Value grad = b.broadcast_in_dim(row_grad(c, m.r) * m.weight, x.dims(), {0});
  const Value others = (squared ? m.slack * 2 : active) * grad;
  const Value own = broadcast(-reduce_sum(others, {1}, true), x.dims());
  const Value self = c.tensor("self");
  return {cast(b.reshape(b.select(m.hit, own, others), self.dims()), self.dtype())};
}

struct MultiLabel {
  Rows r;
  Value valid;      // [N, J]: the labels before the first -1
  Value is_target;  // [N, C]
  Value hit;        // [N, J, C]: valid label j is class c
  Value slack;      // [N, J, C]: 1 - x[label j] + x[c] where positive and c is no target
};

MultiLabel multi_label(Call& c) {
  Builder& b = c.b;
  MultiLabel m{rows(c), {}, {}, {}, {}};
  const Value& x = m.r.x;
  const int64_t n = m.r.n, classes = m.r.classes;
  const Dims square = {n, classes, classes};
  const Value target = b.reshape(m.r.target, {n, classes});
  c.check_range(target, -1, classes, "argument #2 'target' is out of range");
  const Value labels = plain_index(target, classes);
  const Value position = b.iota(Type(DType::kS32, {n, classes}), 1);
  const Value end = reduce_min(
      b.select(b.lt(labels, zeros_like(labels)), position, b.like(position, classes)), {1}, true);
  m.valid = b.lt(position, broadcast(end, {n, classes}));
  const Value same =
      b.eq(b.iota(Type(labels.dtype(), square), 2), b.broadcast_in_dim(labels, square, {0, 1}));
  m.hit = b.and_(same, b.broadcast_in_dim(m.valid, square, {0, 1}));
  m.is_target = b.reduce(m.hit, b.scalar(0, DType::kBool), {1}, Reduction::kOr);
  const Value across = b.broadcast_in_dim(x, square, {0, 2});
  const Value zero = zeros_like(across);
  const Value own = reduce_sum(b.select(m.hit, across, zero), {2}, true);
  const Value slack = positive(1 - broadcast(own, square) + across);
  const Value counts = b.and_(b.broadcast_in_dim(m.valid, square, {0, 1}),
                              b.not_(b.broadcast_in_dim(m.is_target, square, {0, 2})));
  m.slack = b.select(counts, slack, zero);
  return m;
}

Values lower_multilabel_margin_loss_forward(Call& c) {
  const MultiLabel m = multi_label(c);
  const Value loss = reduce_sum(m.slack, {1, 2}) / m.r.classes;
  return {c.b.reshape(reduced(c, loss), c.out(0).dims),
          c.b.reshape(cast(m.is_target, m.r.x.dtype()), c.out(1).dims)};
}

Values lower_multilabel_margin_loss_backward(Call& c) {
  Builder& b = c.b;
  const MultiLabel m = multi_label(c);
  const DType t = m.r.x.dtype();
  const Dims& square = m.slack.dims();
  const Value active = cast(b.gt(m.slack, zeros_like(m.slack)), t);
  const Value per_label = broadcast(reduce_sum(active, {2}, true), square);
  const Value pulls = reduce_sum(b.select(m.hit, per_label, zeros_like(per_label)), {1});
  const Value grad = b.broadcast_in_dim(row_grad(c, m.r), m.r.x.dims(), {0});
  const Value result = (reduce_sum(active, {1}) - pulls) * grad;
  const Value self = c.tensor("self");
  return {cast(b.reshape(result, self.dims()), self.dtype())};
}

// --- elementwise
// ----------------------------------------------------------------------------------

struct Pair {
  Value x, y;  // self and target, one shape, in the type CPU computes in
};

Pair pair(Call& c) {
  const DType t = opmath(c.common_dtype({"self", "target"}));
  const auto [x, y] = broadcast2(cast(c.tensor("self"), t), cast(c.tensor("target"), t));
  return {x, y};
}

Value difference(Call& c) {
  const Pair p = pair(c);
  return p.x - p.y;
}

Value scalar_like(Call& c, std::string_view name, const Value& x) {
  return broadcast(c.scalar(name, x.dtype()), x.dims());
}

Values lower_mse_loss(Call& c) {
  const Value d = difference(c);
  return {reduced(c, d * d)};
}

Values lower_mse_loss_backward(Call& c) {
  const Value d = difference(c);
  return {d * 2 * grad_against(c, d)};
}

Values lower_smooth_l1_loss(Call& c) {
  const Value d = c.b.abs(difference(c));
  const Value beta = scalar_like(c, "beta", d);
  return {reduced(c, c.b.select(c.b.lt(d, beta), d * d * 0.5 / beta, d - beta * 0.5))};
}

Values lower_smooth_l1_loss_backward(Call& c) {
  const Value d = difference(c);
  const Value beta = scalar_like(c, "beta", d);
  const Value slope = c.b.select(c.b.lt(c.b.abs(d), beta), d / beta, c.b.sign(d));
  return {slope * grad_against(c, d)};
}

Values lower_huber_loss(Call& c) {
  const Value d = c.b.abs(difference(c));
  const Value delta = scalar_like(c, "delta", d);
  return {reduced(c, c.b.select(c.b.le(d, delta), d * d * 0.5, delta * (d - delta * 0.5)))};
}

Values lower_huber_loss_backward(Call& c) {
  const Value d = difference(c);
  const Value delta = scalar_like(c, "delta", d);
  const Value slope = nan_minimum(nan_maximum(d, -delta), delta);
  return {slope * grad_against(c, d)};
}

Value times_weight(Call& c, const Value& loss) {
  const Value weight = c.optional_tensor("weight");
  return weight ? loss * broadcast(cast(weight, loss.dtype()), loss.dims()) : loss;
}

Values lower_binary_cross_entropy(Call& c) {
  Builder& b = c.b;
  const Pair p = pair(c);
  const Value fine = b.and_(b.ge(p.x, zeros_like(p.x)), b.le(p.x, ones_like(p.x)));  // not a NaN
  c.check_range(b.convert(fine, DType::kS64), 1, 2,
                "all elements of input should be between 0 and 1");
  const Value floor = b.like(p.x, -100);  // keeps 0 * log(0) out, as on CPU
  const Value log_x = nan_maximum(b.log(p.x), floor);
  const Value log_rest = nan_maximum(b.log_plus_one(-p.x), floor);
  const Value loss = (p.y - 1) * log_rest - p.y * log_x;
  return {reduced(c, times_weight(c, loss))};
}

Values lower_binary_cross_entropy_backward(Call& c) {
  const Pair p = pair(c);
  const Value spread = nan_maximum((1 - p.x) * p.x, c.b.like(p.x, 1e-12));
  const Value grad = grad_against(c, p.x);
  return {times_weight(c, grad * (p.x - p.y) / spread)};
}

Values lower_binary_cross_entropy_with_logits(Call& c) {
  Builder& b = c.b;
  const Pair p = pair(c);
  const Value zero = zeros_like(p.x);
  const Value softplus = b.log_plus_one(b.exponential(-b.abs(p.x))) + nan_maximum(-p.x, zero);
  Value loss = (1 - p.y) * p.x;
  if (const Value pos_weight = c.optional_tensor("pos_weight")) {
    const Value w = broadcast(cast(pos_weight, p.x.dtype()), p.x.dims());
    loss = loss + ((w - 1) * p.y + 1) * softplus;
  } else {
    loss = loss + softplus;
  }
  return {reduced(c, times_weight(c, loss))};
}

Values lower_soft_margin_loss(Call& c) {
  const Pair p = pair(c);
  return {reduced(c, c.b.log_plus_one(c.b.exponential(-p.y * p.x)))};
}

Values lower_soft_margin_loss_backward(Call& c) {
  const Pair p = pair(c);
  const Value slope = -p.y * c.b.logistic(-p.y * p.x);
  return {slope * grad_against(c, p.x)};
}

}  // namespace

void add_loss(Entries& t) {
  t.push_back({.name = "nll_loss_forward", .lower = lower_nll_loss_forward});
  t.push_back({.name = "nll_loss_backward", .lower = lower_nll_loss_backward});
  t.push_back({.name = "nll_loss2d_forward", .lower = lower_nll_loss_forward});
  t.push_back({.name = "nll_loss2d_backward", .lower = lower_nll_loss_backward});
  t.push_back({.name = "multi_margin_loss", .lower = lower_multi_margin_loss, .keyed = {"p"}});
  t.push_back({.name = "multi_margin_loss_backward",
               .lower = lower_multi_margin_loss_backward,
               .keyed = {"p"},
               .no_meta = true});
  t.push_back(
      {.name = "multilabel_margin_loss_forward", .lower = lower_multilabel_margin_loss_forward});
  t.push_back({.name = "multilabel_margin_loss_backward",
               .lower = lower_multilabel_margin_loss_backward,
               .no_meta = true});

  t.push_back({.name = "mse_loss", .lower = lower_mse_loss, .overlap = Overlap::kSameOnly});
  t.push_back({.name = "mse_loss_backward", .lower = lower_mse_loss_backward});
  t.push_back({.name = "smooth_l1_loss",
               .lower = lower_smooth_l1_loss,
               .overlap = Overlap::kSameOnly,
               .checks_numbers = true});
  t.push_back({.name = "smooth_l1_loss_backward", .lower = lower_smooth_l1_loss_backward});
  t.push_back({.name = "huber_loss",
               .lower = lower_huber_loss,
               .overlap = Overlap::kSameOnly,
               .checks_numbers = true});
  t.push_back({.name = "huber_loss_backward", .lower = lower_huber_loss_backward});
  t.push_back({.name = "binary_cross_entropy", .lower = lower_binary_cross_entropy});
  t.push_back(
      {.name = "binary_cross_entropy_backward", .lower = lower_binary_cross_entropy_backward});
  t.push_back({.name = "binary_cross_entropy_with_logits",
               .lower = lower_binary_cross_entropy_with_logits});
  t.push_back({.name = "soft_margin_loss", .lower = lower_soft_margin_loss});
  t.push_back({.name = "soft_margin_loss_backward", .lower = lower_soft_margin_loss_backward});
}

}  // namespace torch_tpu::ops
