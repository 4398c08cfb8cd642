// The fused LSTM and GRU cells that ATen's recurrent layers call once per step, with backwards, and
// weight normalisation. The workspace holds what the backward needs; it is ours to define.
#include "csrc/ops/helpers.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// Part i of n of the last dimension.
Value part(const Value& x, int64_t i, int64_t n) {
  const int64_t size = x.dim(-1) / n;
  return x.builder().slice_dim(x, x.rank() - 1, i * size, (i + 1) * size);
}

Value join(const Values& parts) {
  return parts[0].builder().concatenate(parts, parts[0].rank() - 1);
}

Value with_bias(Call& c, std::string_view gates, std::string_view bias, DType t) {
  const Value x = cast(c.tensor(gates), t);
  const Value add = c.optional_tensor(bias);
  return add ? x + c.b.broadcast_to(cast(add, t), x.dims()) : x;
}

// hy, cy, workspace = the activated gates (input, forget, cell, output).
Values lower_thnn_fused_lstm_cell(Call& c) {
  Builder& b = c.b;
  const DType narrow = c.dtype("input_gates");
  const DType t = opmath(narrow);
  const Value gates =
      with_bias(c, "input_gates", "input_bias", t) + with_bias(c, "hidden_gates", "hidden_bias", t);
  const Value i = b.logistic(part(gates, 0, 4));
  const Value f = b.logistic(part(gates, 1, 4));
  const Value g = b.tanh(part(gates, 2, 4));
  const Value o = b.logistic(part(gates, 3, 4));
  const Value cy = f * cast(c.tensor("cx"), t) + i * g;
  return {cast(o * b.tanh(cy), narrow), cast(cy, narrow), cast(join({i, f, g, o}), narrow)};
}

// grad_gates, grad_cx, grad_bias.
Values lower_thnn_fused_lstm_cell_backward_impl(Call& c) {
  Builder& b = c.b;
  const Value grad_hy = c.optional_tensor("grad_hy");
  const Value grad_cy = c.optional_tensor("grad_cy");
  if (!grad_hy && !grad_cy) return Values(3);
  const DType t = opmath(c.dtype("workspace"));
  const Value workspace = cast(c.tensor("workspace"), t);
  const Value i = part(workspace, 0, 4), f = part(workspace, 1, 4);
  const Value g = part(workspace, 2, 4), o = part(workspace, 3, 4);
  const Value tanh_cy = b.tanh(cast(c.tensor("cy"), t));
  const Value zero = zeros_like(tanh_cy);
  const Value dh = grad_hy ? cast(grad_hy, t) : zero;
  Value dc = dh * o * (1.0 - tanh_cy * tanh_cy);
  if (grad_cy) dc = dc + cast(grad_cy, t);
  const auto sigmoid_slope = [](const Value& y) { return y * (1.0 - y); };
  const Value di = dc * g * sigmoid_slope(i);
  const Value df = dc * cast(c.tensor("cx"), t) * sigmoid_slope(f);
  const Value dg = dc * i * (1.0 - g * g);
  const Value dgo = dh * tanh_cy * sigmoid_slope(o);
  const Value gates = join({di, df, dg, dgo});
  return {gates, dc * f, c.flag("has_bias") ? reduce_sum(gates, {0}) : Value()};
}

// hy, workspace = (reset, update, new, hx, hidden part of the new gate).
Values lower_thnn_fused_gru_cell(Call& c) {
  Builder& b = c.b;
  const DType narrow = c.dtype("input_gates");
  const DType t = opmath(narrow);
  const Value input = with_bias(c, "input_gates", "input_bias", t);
  const Value hidden = with_bias(c, "hidden_gates", "hidden_bias", t);
  const Value hx = cast(c.tensor("hx"), t);
  const Value r = b.logistic(part(input, 0, 3) + part(hidden, 0, 3));
  const Value z = b.logistic(part(input, 1, 3) + part(hidden, 1, 3));
  const Value hn = part(hidden, 2, 3);
  const Value n = b.tanh(part(input, 2, 3) + r * hn);
  return {cast(n + z * (hx - n), narrow), cast(join({r, z, n, hx, hn}), narrow)};
}

// grad_input_gates, grad_hidden_gates, grad_hx, grad_input_bias, grad_hidden_bias.
Values lower_thnn_fused_gru_cell_backward(Call& c) {
  const DType narrow = c.dtype("workspace");
  const DType t = opmath(narrow);
  const Value workspace = cast(c.tensor("workspace"), t);
  const Value grad = cast(c.tensor("grad_hy"), t);
  const Value r = part(workspace, 0, 5), z = part(workspace, 1, 5), n = part(workspace, 2, 5);
  const Value hx = part(workspace, 3, 5), hn = part(workspace, 4, 5);
  const Value dn = grad * (1.0 - z) * (1.0 - n * n);
  const Value dz = grad * (hx - n) * z * (1.0 - z);
  const Value dr = dn * hn * r * (1.0 - r);
  const Value input = join({dr, dz, dn});
  const Value hidden = join({dr, dz, dn * r});
  Values grads = {input, hidden, grad * z, Value(), Value()};
  if (c.flag("has_bias")) {
    grads[3] = reduce_sum(input, {0});
    grads[4] = reduce_sum(hidden, {0});
  }
  for (Value& g : grads) {
    if (g) g = cast(g, narrow);
  }
  return grads;
}

// --- weight normalisation: w = g * v / |v|, the norm over all dimensions but `dim` ---------------

Dims all_but(const Value& x, int64_t dim) {
  return without(range(x.rank()), {wrap_dim(dim, x.rank())});
}

Values lower_weight_norm_interface(Call& c) {
  const Value v = c.tensor("v");
  const DType t = opmath(v.dtype());
  const Value wide = cast(v, t);
  const Value norm = c.b.sqrt(reduce_sum(wide * wide, all_but(v, c.integer("dim")), true));
  const Value g = c.b.reshape(cast(c.tensor("g"), t), norm.dims());
  return {wide * c.b.broadcast_to(g / norm, v.dims()), c.b.reshape(norm, c.out(1).dims)};
}

// grad_v, grad_g.
Values lower_weight_norm_interface_backward(Call& c) {
  Builder& b = c.b;
  const Value v = c.tensor("saved_v");
  const DType t = opmath(v.dtype());
  const Value wide = cast(v, t);
  const Value grad = cast(c.tensor("grad_w"), t);
  const Dims summed = all_but(v, c.integer("dim"));
  const Dims kept = keep_dims(v.dims(), summed);
  const Value norm = b.reshape(cast(c.tensor("saved_norms"), t), kept);
  const Value g = b.reshape(cast(c.tensor("saved_g"), t), kept);
  const Value along = reduce_sum(grad * wide, summed, true);
  const auto spread = [&](const Value& x) { return b.broadcast_to(x, v.dims()); };
  const Value grad_v = spread(g / norm) * (grad - wide * spread(along / (norm * norm)));
  return {grad_v, b.reshape(along / norm, c.out(1).dims)};
}

}  // namespace

void add_rnn(Entries& t) {
  // Its Meta kernel fails without biases.
  t.push_back(
      {.name = "_thnn_fused_lstm_cell", .lower = lower_thnn_fused_lstm_cell, .no_meta = true});
  t.push_back({.name = "_thnn_fused_lstm_cell_backward_impl",
               .lower = lower_thnn_fused_lstm_cell_backward_impl});
  t.push_back(
      {.name = "_thnn_fused_gru_cell", .lower = lower_thnn_fused_gru_cell, .no_meta = true});
  t.push_back({.name = "_thnn_fused_gru_cell_backward",
               .lower = lower_thnn_fused_gru_cell_backward,
               .no_meta = true});
  t.push_back({.name = "_weight_norm_interface", .lower = lower_weight_norm_interface});
  t.push_back(
      {.name = "_weight_norm_interface_backward", .lower = lower_weight_norm_interface_backward});
}

}  // namespace torch_tpu::ops
