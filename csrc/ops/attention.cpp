// Scaled dot product attention as one program each for forward and backward: with all scores at
// once here, and the choice between that and the forms of attention.h. Scores and softmax are f32
// for half types; the weights go back to the input's dtype for the second product, as in flash
// attention kernels. Key and value may have fewer heads than the query: then a head of theirs
// serves a run of query heads, which is a matter of reshaping the query. Rows with nothing to
// attend to give zeros.
#include "csrc/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "csrc/ops/helpers.h"
#include "csrc/ops/matmul_precision.h"
#include "csrc/ops/random.h"
#include "csrc/ops/table.h"
#include "csrc/stablehlo/axis.h"

namespace torch_tpu::ops {

void add_attention_layers(Entries& t);  // attention_layers.cpp
void add_attention_jagged(Entries& t);  // attention_jagged.cpp

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Stream of the generator's state that the dropout mask is drawn from.
constexpr int64_t kDropoutStream = 1;
// Up to these, all scores at once are no burden and the fastest form: sides, or scores in all.
constexpr int64_t kShortLength = 512;
constexpr int64_t kFewScores = int64_t{1} << 22;
// Widths of heads whose customary scale, 1 / sqrt(width), is worth a program that knows it.
constexpr int64_t kMaxKnownWidth = 256;

// A batch of matrices [B, heads, rows, columns] with the rows of neighbouring heads joined, so that
// `heads` remain.
Value join_heads(const Value& x, int64_t heads) {
  const int64_t rows = heads == 0 ? 0 : x.dim(1) * x.dim(2) / heads;
  return x.builder().reshape(x, {x.dim(0), heads, rows, x.dim(3)});
}

Value as_rank4(const Value& x) {
  Dims dims = x.dims();
  while (dims.size() < 4) dims.insert(dims.begin(), 1);
  return x.builder().reshape(x, dims);
}

Attention attention_of(Call& c) {
  Attention a;
  a.query = as_rank4(c.tensor("query"));
  a.key = as_rank4(c.tensor("key"));
  a.value = as_rank4(c.tensor("value"));
  expect_whole(a.query, {3}, "attention");
  const DType t = opmath(a.query.dtype());
  if (c.has("scale")) {
    if (const auto known = c.known("scale")) a.known_scale = known->to_double();
    a.scale = c.scalar("scale", t);
  } else {
    a.known_scale = 1 / std::sqrt(double(a.query.dim(3)));
    a.scale = c.b.scalar(*a.known_scale, t);
  }
  if (const Value bias = c.optional_tensor("attn_bias")) a.bias = as_rank4(bias);
  a.causal = c.flag("is_causal");
  a.query_contiguous = c.contiguous("query");
  return a;
}

bool drops(Call& c) { return c.known("dropout_p") != 0; }

// Scaled, biased, masked: [B, H, L, S].
Value scores_of(const Attention& a) {
  Builder& b = a.query.builder();
  const Dims dims = a.score_dims();
  Value scores = times_scalar(b.reshape(head_product(a.query, a.key, 3, 3), dims), a.scale);
  if (a.bias) scores = scores + b.broadcast_to(cast(a.bias, a.wide()), dims);
  if (a.causal) {
    const Type type(DType::kS32, {dims[2], dims[3]});
    const Value visible = b.broadcast_to(b.ge(b.iota(type, 0), b.iota(type, 1)), dims);
    scores = b.select(visible, scores, b.like(scores, -kInfinity));
  }
  return scores;
}

struct Softmax {
  Value weights;  // exp(scores - shift), not divided by `sum`
  Value sum;      // [B, H, L]
  Value logsumexp;
};

Softmax softmax(const Value& scores) {
  Builder& b = scores.builder();
  const Value max = reduce_max_loose(scores, {3});
  const Value shift = b.select(b.eq(max, b.like(max, -kInfinity)), zeros_like(max), max);
  Softmax s;
  s.weights = b.exponential(scores - over_last(shift, scores.dims()));
  s.sum = reduce_sum(s.weights, {3});
  s.logsumexp = b.log(s.sum) + shift;
  return s;
}

// In blocks the place of an element among all is known for fixed sizes only.
void check_draws(const Attention& a, const Dropout& dropout, AttentionForm form) {
  if (!dropout.state || form == AttentionForm::kPlain) return;
  if (a.query.type().is_static() && a.key.type().is_static()) return;
  throw stablehlo::Unproven("attention with dropout, in blocks of a dimension that varies");
}

AttentionOut attention_at_once(const Attention& a, const Dropout& dropout) {
  Builder& b = a.query.builder();
  const Softmax s = softmax(scores_of(a));
  Value weights = s.weights;
  if (dropout.state) weights = dropped(weights, dropout, weights.dims());
  const Dims dims = a.out_dims();
  const Value mixed = b.reshape(head_product(cast(weights, a.value.dtype()), a.value, 3, 2), dims);
  const Value nothing = b.eq(s.sum, zeros_like(s.sum));
  const Value sum = b.select(nothing, ones_like(s.sum), s.sum);
  return {mixed / over_last(sum, dims), s.logsumexp};
}

Values attention_grad_at_once(const Attention& a, const Dropout& dropout, const AttentionGrad& g) {
  Builder& b = a.query.builder();
  const DType t = a.value.dtype();
  const Value scores = scores_of(a);
  const Dims& dims = scores.dims();
  // The softmax itself, from the saved logsumexp. That is f32, too coarse for f64.
  const bool coarse = scores.dtype() == DType::kF64;
  const Value lse = coarse ? softmax(scores).logsumexp : cast(g.logsumexp, scores.dtype());
  const Value nothing = b.eq(lse, b.like(lse, -kInfinity));
  const Value shift = b.select(nothing, zeros_like(lse), lse);
  // Scores are -inf where there is nothing.
  const Value weights = b.exponential(scores - over_last(shift, dims));
  const auto drop = [&](const Value& x) { return dropout.state ? dropped(x, dropout, dims) : x; };

  Values grads(4);
  if (g.wants[2]) {
    grads[2] = transposed_head_product(cast(drop(weights), t), g.grad_out, a.value.dim(1));
  }
  const Value dot = cast(g.grad_out, a.wide()) * cast(g.out, a.wide());
  const Value mean = over_last(reduce_sum(dot, {3}), dims);
  const Value dw = drop(b.reshape(head_product(g.grad_out, a.value, 3, 3), dims));
  const Value ds = weights * (dw - mean);
  const Value ds_narrow = cast(ds, t);
  if (g.wants[0]) {
    const Value dq = b.reshape(head_product(ds_narrow, a.key, 3, 2), a.query.dims());
    grads[0] = times_scalar(dq, a.scale);
  }
  if (g.wants[1]) {
    grads[1] = times_scalar(transposed_head_product(ds_narrow, a.query, a.key.dim(1)), a.scale);
  }
  if (g.wants[3] && a.bias) grads[3] = sum_to(ds, a.bias.dims());
  return grads;
}

Values lower_forward(Call& c) {
  Builder& b = c.b;
  const Attention a = attention_of(c);
  Dropout dropout;
  Value seed = b.scalar(0, DType::kS64), offset = seed;
  if (drops(c)) {
    dropout = {c.rng_state(), c.scalar("dropout_p", DType::kF32)};
    const Value words = b.bitcast_convert(dropout.state, Type(DType::kS64, {2}));
    seed = b.reshape(b.slice(words, {0}, {1}), {});
    offset = b.reshape(b.slice(words, {1}, {2}), {});
  }
  const AttentionOut r = attention(a, dropout);
  // Sequence starts and lengths are for ragged batches, the debug mask is never asked for.
  return {b.reshape(r.out, c.out(0).dims),
          b.reshape(r.logsumexp, c.out(1).dims),
          Value(),
          Value(),
          Value(),
          Value(),
          seed,
          offset,
          Value()};
}

Values lower_backward(Call& c) {
  Builder& b = c.b;
  const Attention a = attention_of(c);
  AttentionGrad g;
  g.grad_out = as_rank4(c.tensor("grad_out"));
  g.out = as_rank4(c.tensor("out"));
  const Dims dims = a.score_dims();
  g.logsumexp = b.reshape(c.tensor("logsumexp"), {dims[0], dims[1], dims[2]});
  g.wants = c.flags("grad_input_mask");
  Dropout dropout;
  if (drops(c)) {
    const auto word = [&](std::string_view name) { return b.reshape(c.tensor(name), {1}); };
    const Value words = b.concatenate({word("philox_seed"), word("philox_offset")}, 0);
    dropout = {b.bitcast_convert(words, Type(DType::kU64, {2})),
               c.scalar("dropout_p", DType::kF32)};
  }
  Values grads;
  check_draws(a, dropout, attention_form(a, dropout, &g));
  switch (attention_form(a, dropout, &g)) {
    case AttentionForm::kPlain:
      grads = attention_grad_at_once(a, dropout, g);
      break;
    case AttentionForm::kBlocks:
      grads = attention_grad_by_blocks(a, dropout, g);
      break;
    case AttentionForm::kCudnn:
      grads = attention_grad_by_cudnn(a, g);
      break;
  }
  const std::string_view names[] = {"query", "key", "value", "attn_bias"};
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!g.wants[i]) grads[i] = Value();
    if (grads[i]) grads[i] = b.reshape(grads[i], c.tensor(names[i]).dims());
  }
  return grads;
}

// No dropout, no scale, and the scales in use. Both ways of computing those: they differ in the
// last bit.
std::vector<Number> known_numbers() {
  std::vector<Number> out = {0.0, 1.0};
  for (int64_t width = 8; width <= kMaxKnownWidth; width += 8) {
    out.push_back(1 / std::sqrt(double(width)));
    const double power = std::pow(double(width), -0.5);
    if (power != out.back()) out.push_back(power);
  }
  return out;
}

}  // namespace

AttentionForm attention_form(const Attention& a, const Dropout& dropout,
                             const AttentionGrad* grad) {
  const Target& to = target();
  const Dims dims = a.score_dims();
  if (to.attention == AttentionForm::kPlain || stablehlo::product(dims) == 0) {
    return AttentionForm::kPlain;
  }
  // Blocks would be cut at places that do not count.
  for (const Value& x : {a.query, a.key, a.value}) {
    if (!x.type().is_static()) return AttentionForm::kPlain;
  }
  if (to.attention == AttentionForm::kCudnn && cudnn_takes(a, dropout, grad)) {
    return AttentionForm::kCudnn;
  }
  const bool few =
      std::max(dims[2], dims[3]) <= kShortLength || stablehlo::product(dims) <= kFewScores;
  return few && to.attention_block == 0 ? AttentionForm::kPlain : AttentionForm::kBlocks;
}

AttentionOut attention(const Attention& a, const Dropout& dropout) {
  check_draws(a, dropout, attention_form(a, dropout, nullptr));
  switch (attention_form(a, dropout, nullptr)) {
    case AttentionForm::kBlocks:
      return attention_by_blocks(a, dropout);
    case AttentionForm::kCudnn:
      return attention_by_cudnn(a);
    case AttentionForm::kPlain:
      break;
  }
  return attention_at_once(a, dropout);
}

Value head_product(const Value& a, const Value& b, int64_t a_dim, int64_t b_dim) {
  const stablehlo::DotDims dims = {{0, 1}, {0, 1}, {a_dim}, {b_dim}};
  return a.builder().dot_general(join_heads(a, b.dim(1)), b, dims, opmath(b.dtype()),
                                 matmul_precision(b.dtype()));
}

Value transposed_head_product(const Value& a, const Value& b, int64_t heads) {
  return head_product(a, join_heads(b, heads), 2, 2);
}

Value over_last(const Value& row, const Dims& dims) {
  return row.builder().broadcast_in_dim(row, dims, {0, 1, 2});
}

Value times_scalar(const Value& x, const Value& scalar) {
  return x * x.builder().broadcast_to(scalar, x.dims());
}

Value dropped(const Value& x, const Dropout& dropout, const Dims& all, const Values& starts) {
  Builder& b = x.builder();
  const Value stream = random_stream(b, dropout.state, kDropoutStream);
  const Value drawn = starts.empty()
                          ? random_uniform01_like(b, stream, x, DType::kF32)
                          : random_uniform01_part(b, stream, all, starts, x.dims(), DType::kF32);
  const Value keep = b.ge(drawn, b.broadcast_to(dropout.p, x.dims()));
  const Value scale = cast(1.0 / (1.0 - dropout.p), x.dtype());
  return b.select(keep, times_scalar(x, scale), zeros_like(x));
}

void add_attention(Entries& t) {
  const std::vector<Number> known = known_numbers();
  t.push_back({.name = "_scaled_dot_product_fused_attention_overrideable",
               .lower = lower_forward,
               .random = true,
               .special = known});
  t.push_back({.name = "_scaled_dot_product_fused_attention_overrideable_backward",
               .lower = lower_backward,
               .special = known});
  add_attention_layers(t);
  add_attention_jagged(t);
}

}  // namespace torch_tpu::ops
