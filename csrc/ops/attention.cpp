// Scaled dot product attention as one program each for forward and backward. Scores and softmax are
// f32 for half types; the weights go back to the input's dtype for the second product, as in flash
// attention kernels. Key and value may have fewer heads than the query: then a head of theirs
// serves a run of query heads, which is a matter of reshaping the query. Rows with nothing to
// attend to give zeros.
#include <cmath>
#include <limits>

#include "csrc/ops/helpers.h"
#include "csrc/ops/matmul_precision.h"
#include "csrc/ops/random.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {

void add_attention_layers(Entries& t);  // attention_layers.cpp

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Stream of the generator's state that the dropout mask is drawn from.
constexpr int64_t kDropoutStream = 1;

// A batch of matrices [B, heads, rows, columns] with the rows of neighbouring heads joined, so that
// `heads` remain.
Value join_heads(const Value& x, int64_t heads) {
  const int64_t rows = heads == 0 ? 0 : x.dim(1) * x.dim(2) / heads;
  return x.builder().reshape(x, {x.dim(0), heads, rows, x.dim(3)});
}

// Over one of the last two dimensions of each factor; a has a multiple of the heads of b.
Value product(const Value& a, const Value& b, int64_t a_dim, int64_t b_dim) {
  const stablehlo::DotDims dims = {{0, 1}, {0, 1}, {a_dim}, {b_dim}};
  return a.builder().dot_general(join_heads(a, b.dim(1)), b, dims, opmath(b.dtype()),
                                 matmul_precision(b.dtype()));
}

// a^T b per head of `heads`: [B, heads, columns of a, columns of b].
Value transposed_product(const Value& a, const Value& b, int64_t heads) {
  return product(a, join_heads(b, heads), 2, 2);
}

Value as_batch(const Value& x) {
  if (x.rank() == 4) return x;
  Dims dims = x.dims();
  dims.insert(dims.begin(), 1);
  return x.builder().reshape(x, dims);
}

struct Attention {
  Value query, key, value;  // [B, H, L, E], [B, Hk, S, E], [B, Hv, S, Ev]
  Value scale;              // 0-d
  Value scores;             // [B, H, L, S]: scaled, biased, masked
};

Value over(const Value& row, const Dims& dims) {
  return row.builder().broadcast_in_dim(row, dims, {0, 1, 2});
}

Value times(const Value& x, const Value& scalar) {
  return x * x.builder().broadcast_to(scalar, x.dims());
}

Attention attention_of(Call& c) {
  Builder& b = c.b;
  Attention a;
  a.query = as_batch(c.tensor("query"));
  a.key = as_batch(c.tensor("key"));
  a.value = as_batch(c.tensor("value"));
  const DType t = opmath(a.query.dtype());
  a.scale =
      c.has("scale") ? c.scalar("scale", t) : b.scalar(1 / std::sqrt(double(a.query.dim(3))), t);
  const Dims dims = {a.query.dim(0), a.query.dim(1), a.query.dim(2), a.key.dim(2)};
  a.scores = times(b.reshape(product(a.query, a.key, 3, 3), dims), a.scale);
  if (const Value bias = c.optional_tensor("attn_bias")) {
    a.scores = a.scores + b.broadcast_to(cast(bias, t), dims);
  }
  if (c.flag("is_causal")) {
    // Both sequences begin together, whatever their lengths.
    const Type type(DType::kS32, {dims[2], dims[3]});
    const Value visible = b.broadcast_to(b.ge(b.iota(type, 0), b.iota(type, 1)), dims);
    a.scores = b.select(visible, a.scores, b.like(a.scores, -kInfinity));
  }
  return a;
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
  s.weights = b.exponential(scores - over(shift, scores.dims()));
  s.sum = reduce_sum(s.weights, {3});
  s.logsumexp = b.log(s.sum) + shift;
  return s;
}

bool drops(Call& c) {
  const std::optional<double> p = c.known("dropout_p");
  return !p || *p != 0;
}

// Zeros what is dropped and scales up the rest.
Value dropped(Call& c, const Value& x, const Value& state) {
  Builder& b = c.b;
  const Value p = c.scalar("dropout_p", DType::kF32);
  const Value drawn =
      random_uniform01(b, random_stream(b, state, kDropoutStream), x.dims(), DType::kF32);
  const Value keep = b.ge(drawn, b.broadcast_to(p, x.dims()));
  const Value scale = cast(1.0 / (1.0 - p), x.dtype());
  return b.select(keep, times(x, scale), zeros_like(x));
}

Values lower_forward(Call& c) {
  Builder& b = c.b;
  const Attention a = attention_of(c);
  const DType t = a.value.dtype();
  const Softmax s = softmax(a.scores);
  Value weights = s.weights;
  Value seed = b.scalar(0, DType::kS64), offset = seed;
  if (drops(c)) {
    const Value state = c.rng_state();
    weights = dropped(c, weights, state);
    const Value words = b.bitcast_convert(state, Type(DType::kS64, {2}));
    seed = b.reshape(b.slice(words, {0}, {1}), {});
    offset = b.reshape(b.slice(words, {1}, {2}), {});
  }
  const Dims dims = {a.query.dim(0), a.query.dim(1), a.query.dim(2), a.value.dim(3)};
  const Value mixed = b.reshape(product(cast(weights, t), a.value, 3, 2), dims);
  const Value nothing = b.eq(s.sum, zeros_like(s.sum));
  const Value sum = b.select(nothing, ones_like(s.sum), s.sum);
  const Value out = mixed / over(sum, dims);
  // Sequence starts and lengths are for ragged batches, the debug mask is never asked for.
  return {b.reshape(out, c.out(0).dims),
          b.reshape(s.logsumexp, c.out(1).dims),
          Value(),
          Value(),
          Value(),
          Value(),
          seed,
          offset,
          Value()};
}

// The softmax itself, from the saved logsumexp. That is f32, too coarse for f64.
Value normalized(Call& c, const Attention& a) {
  Builder& b = c.b;
  const Dims& dims = a.scores.dims();
  Value lse;
  if (a.scores.dtype() == DType::kF64) {
    lse = softmax(a.scores).logsumexp;
  } else {
    lse = cast(b.reshape(c.tensor("logsumexp"), {dims[0], dims[1], dims[2]}), a.scores.dtype());
  }
  const Value nothing = b.eq(lse, b.like(lse, -kInfinity));
  const Value shift = b.select(nothing, zeros_like(lse), lse);
  return b.exponential(a.scores - over(shift, dims));  // scores are -inf where there is nothing
}

Values lower_backward(Call& c) {
  Builder& b = c.b;
  const Attention a = attention_of(c);
  const std::vector<bool> mask = c.flags("grad_input_mask");
  const DType t = a.value.dtype();
  const DType wide = a.scores.dtype();
  const Dims& dims = a.scores.dims();
  const Value grad = as_batch(c.tensor("grad_out"));
  const Value weights = normalized(c, a);

  Value state;
  if (drops(c)) {
    const auto word = [&](std::string_view name) { return b.reshape(c.tensor(name), {1}); };
    const Value words = b.concatenate({word("philox_seed"), word("philox_offset")}, 0);
    state = b.bitcast_convert(words, Type(DType::kU64, {2}));
  }
  const auto drop = [&](const Value& x) { return state ? dropped(c, x, state) : x; };

  Values grads(4);
  if (mask[2]) {
    const Value dv = transposed_product(cast(drop(weights), t), grad, a.value.dim(1));
    grads[2] = b.reshape(dv, c.tensor("value").dims());
  }
  const Value dot = cast(grad, wide) * cast(as_batch(c.tensor("out")), wide);
  const Value mean = over(reduce_sum(dot, {3}), dims);
  const Value dw = drop(b.reshape(product(grad, a.value, 3, 3), dims));
  const Value ds = weights * (dw - mean);
  const Value ds_narrow = cast(ds, t);
  if (mask[0]) {
    grads[0] = b.reshape(times(product(ds_narrow, a.key, 3, 2), a.scale), c.tensor("query").dims());
  }
  if (mask[1]) {
    const Value dk = transposed_product(ds_narrow, a.query, a.key.dim(1));
    grads[1] = b.reshape(times(dk, a.scale), c.tensor("key").dims());
  }
  if (mask[3] && c.has("attn_bias")) grads[3] = sum_to(ds, c.tensor("attn_bias").dims());
  return grads;
}

}  // namespace

void add_attention(Entries& t) {
  t.push_back({.name = "_scaled_dot_product_fused_attention_overrideable",
               .lower = lower_forward,
               .random = true,
               .special = {0.0}});
  t.push_back({.name = "_scaled_dot_product_fused_attention_overrideable_backward",
               .lower = lower_backward,
               .special = {0.0}});
  add_attention_layers(t);
}

}  // namespace torch_tpu::ops
