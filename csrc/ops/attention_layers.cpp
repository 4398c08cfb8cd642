// The whole attention layers that nn.MultiheadAttention and nn.TransformerEncoderLayer call in
// inference: projections, attention, residuals, norms and feed-forward as one program.
#include <cmath>
#include <limits>

#include "csrc/ops/attention.h"
#include "csrc/ops/helpers.h"
#include "csrc/ops/matmul_precision.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {

namespace {

// x [..., in] times weight [out, in], plus bias; in opmath.
Value linear(const Value& x, const Value& weight, const Value& bias) {
  Builder& b = x.builder();
  const Value w = cast(weight, x.dtype());
  const Value y = b.dot_general(x, w, {{}, {}, {x.rank() - 1}, {1}}, opmath(x.dtype()),
                                matmul_precision(x.dtype()));
  return y + b.broadcast_to(cast(bias, y.dtype()), y.dims());
}

// Part i of the packed query, key and value projections.
Value part(const Value& packed, int64_t i, int64_t size) {
  return packed.builder().slice_dim(packed, 0, i * size, (i + 1) * size);
}

// True where a key is hidden, as [1 or B, 1 or H, 1 or T, S].
Value hidden(Call& c) {
  const Value mask = c.optional_tensor("mask");
  if (!mask) return mask;
  // CPU, too, takes a floating mask only for where it is not zero.
  const Value flags = cast(mask, DType::kBool);
  Dims dims = flags.dims();
  if (c.integer_or("mask_type", 2) == 1) {  // padding: [B, S]
    return c.b.reshape(flags, {dims[0], 1, 1, dims[1]});
  }
  while (dims.size() < 4) dims.insert(dims.begin(), 1);
  return c.b.reshape(flags, dims);
}

struct Attended {
  Value out;      // [B, T, D], in opmath
  Value weights;  // [B, H, T, S]; undefined where they were not wanted
};

// Without the matrix of all scores where that is large; undefined: not for this. Arguments are
// [B, length, H, E].
Value mixed_by_form(Call& c, const Value& query, const Value& key, const Value& value) {
  // A row that a mask hides altogether is not a number here, but zeros there.
  if (c.optional_tensor("mask")) return Value();
  const auto heads_first = [&](const Value& x) { return c.b.transpose(x, {0, 2, 1, 3}); };
  Attention a;
  a.query = heads_first(query);
  a.key = heads_first(key);
  a.value = heads_first(value);
  a.known_scale = 1 / std::sqrt(double(query.dim(3)));
  a.scale = c.b.scalar(*a.known_scale, opmath(query.dtype()));
  a.query_contiguous = false;
  if (attention_form(a, {}, nullptr) == AttentionForm::kPlain) return Value();
  return attention(a, {}).out;
}

Attended attend(Call& c, const Value& query, const Value& key, const Value& value, int64_t heads,
                bool wants_weights) {
  Builder& b = c.b;
  const DType t = query.dtype();
  const Value packed = c.tensor("qkv_weight");
  const Value biases = c.tensor("qkv_bias");
  const int64_t width = packed.dim(0) / 3;
  const int64_t head = width / heads;
  // [B, length, H, E]
  const auto project = [&](const Value& x, int64_t i) {
    const Value y = linear(x, part(packed, i, width), part(biases, i, width));
    return b.reshape(y, {x.dim(0), x.dim(1), heads, head});
  };
  const Value k = cast(project(key, 1), t);
  const Value v = cast(project(value, 2), t);
  // [B, H, T, E] to the layer's output: heads side by side.
  const auto project_out = [&](const Value& mixed) {
    const Value joined =
        b.reshape(b.transpose(mixed, {0, 2, 1, 3}), {query.dim(0), query.dim(1), width});
    return linear(cast(joined, t), c.tensor("proj_weight"), c.tensor("proj_bias"));
  };
  if (!wants_weights) {
    const Value mixed = mixed_by_form(c, cast(project(query, 0), t), k, v);
    if (mixed) return {project_out(mixed), Value()};
  }
  const Value q = cast(project(query, 0) * (1 / std::sqrt(double(head))), t);
  const DType wide = opmath(t);
  Value scores =
      b.dot_general(q, k, {{0, 2}, {0, 2}, {3}, {3}}, wide, matmul_precision(t));  // [B, H, T, S]
  if (const Value mask = hidden(c)) {
    const double none = -std::numeric_limits<double>::infinity();
    scores = b.select(b.broadcast_to(mask, scores.dims()), b.like(scores, none), scores);
  }
  const auto over = [&](const Value& row) { return b.broadcast_to(row, scores.dims()); };
  const Value powers = b.exponential(scores - over(reduce_max_loose(scores, {3}, true)));
  const Value weights = powers / over(reduce_sum(powers, {3}, true));
  const Value mixed =
      b.dot_general(cast(weights, t), v, {{0, 1}, {0, 2}, {3}, {1}}, wide, matmul_precision(t));
  return {project_out(mixed), weights};
}

Values lower_native_multi_head_attention(Call& c) {
  const Value query = c.tensor("query");
  const bool wants_weights = c.flag("need_weights");
  const Attended a =
      attend(c, query, c.tensor("key"), c.tensor("value"), c.integer("num_head"), wants_weights);
  const DType t = query.dtype();
  Value weights;
  if (wants_weights) {
    weights = c.flag("average_attn_weights") ? reduce_mean(a.weights, {1}) : a.weights;
    weights = cast(weights, t);
  }
  return {cast(a.out, t), weights};
}

Value layer_norm(Call& c, const Value& x, std::string_view weight, std::string_view bias) {
  Builder& b = c.b;
  const DType t = x.dtype();
  const Value wide = cast(x, opmath(t));
  const Dims last = {x.rank() - 1};
  const auto over = [&](const Value& row) { return b.broadcast_to(row, x.dims()); };
  const Value centred = wide - over(reduce_mean(wide, last, true));
  const Value variance = reduce_mean(centred * centred, last, true);
  const Value eps = b.broadcast_to(c.scalar("eps", wide.dtype()), variance.dims());
  const Value unit = centred * over(b.rsqrt(variance + eps));
  return cast(
      unit * over(cast(c.tensor(weight), wide.dtype())) + over(cast(c.tensor(bias), wide.dtype())),
      t);
}

Values lower_transformer_encoder_layer_fwd(Call& c) {
  Builder& b = c.b;
  const Value src = c.tensor("src");
  const DType t = src.dtype();
  const bool norm_first = c.flag("norm_first");
  const auto norm1 = [&](const Value& x) {
    return layer_norm(c, x, "norm_weight_1", "norm_bias_1");
  };
  const auto norm2 = [&](const Value& x) {
    return layer_norm(c, x, "norm_weight_2", "norm_bias_2");
  };
  const Value in = norm_first ? norm1(src) : src;
  Value x = cast(attend(c, in, in, in, c.integer("num_heads"), false).out, t) + src;
  if (!norm_first) x = norm1(x);
  Value y = linear(norm_first ? norm2(x) : x, c.tensor("ffn_weight_1"), c.tensor("ffn_bias_1"));
  y = c.flag("use_gelu") ? y * 0.5 * (b.erf(y * M_SQRT1_2) + 1.0) : nan_maximum(y, zeros_like(y));
  y = cast(linear(cast(y, t), c.tensor("ffn_weight_2"), c.tensor("ffn_bias_2")), t) + x;
  return {norm_first ? y : norm2(y)};
}

}  // namespace

void add_attention_layers(Entries& t) {
  t.push_back({.name = "_native_multi_head_attention",
               .lower = lower_native_multi_head_attention,
               .no_meta = true});
  t.push_back({.name = "_transformer_encoder_layer_fwd",
               .lower = lower_transformer_encoder_layer_fwd,
               .no_meta = true});
}

}  // namespace torch_tpu::ops
