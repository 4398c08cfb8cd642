// Softmax and log-softmax with their backwards, and the masked form of nn.MultiheadAttention's
// fast path. Half types are computed in f32 and rounded once.
#include <limits>

#include "csrc/ops/helpers.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// A softmax dimension of a value; a scalar counts as one row of one element.
struct Row {
  Value x;
  Dims dim;

  Value expand(const Value& reduced) const { return x.builder().broadcast_to(reduced, x.dims()); }
};

Row row(Call& c, std::string_view name, int64_t dim) {
  const Value x = c.tensor(name);
  return {cast(x, opmath(x.dtype())), wrap_dims({dim}, x.rank())};
}

Value shifted(const Row& r) { return r.x - r.expand(reduce_max_loose(r.x, r.dim, true)); }

Value softmax(const Row& r) {
  const Value e = r.x.builder().exponential(shifted(r));
  return e / r.expand(reduce_sum(e, r.dim, true));
}

Values lower__softmax(Call& c) { return {softmax(row(c, "self", c.integer("dim")))}; }

Values lower__log_softmax(Call& c) {
  const Row r = row(c, "self", c.integer("dim"));
  const Value s = shifted(r);
  return {s - r.expand(c.b.log(reduce_sum(c.b.exponential(s), r.dim, true)))};
}

Value softmax_backward(const Row& grad, const Value& output) {
  const Value product = grad.x * output;
  return product - output * grad.expand(reduce_sum(product, grad.dim, true));
}

Values lower__softmax_backward_data(Call& c) {
  const Row grad = row(c, "grad_output", c.integer("dim"));
  return {softmax_backward(grad, cast(c.tensor("output"), grad.x.dtype()))};
}

Values lower__log_softmax_backward_data(Call& c) {
  const Row grad = row(c, "grad_output", c.integer("dim"));
  const Value output = cast(c.tensor("output"), grad.x.dtype());
  return {grad.x - c.b.exponential(output) * grad.expand(reduce_sum(grad.x, grad.dim, true))};
}

// --- masked: true means left out ----------------------------------------------------------------

// mask_type 0: [L, L] for every batch and head; 1: [B, L], padding of the keys; 2: as the input.
Value expand_mask(Call& c, const Dims& dims) {
  Value mask = cast(c.tensor("mask"), DType::kBool);
  if (c.integer_or("mask_type", 2) == 1 && mask.rank() == 2) {
    mask = c.b.reshape(mask, {mask.dim(0), 1, 1, mask.dim(1)});
  }
  return c.b.broadcast_to(mask, dims);
}

Values lower__masked_softmax(Call& c) {
  Row r = row(c, "self", c.integer_or("dim", -1));
  const Value mask = expand_mask(c, r.x.dims());
  r.x = c.b.select(mask, c.b.like(r.x, -std::numeric_limits<double>::infinity()), r.x);
  return {cast(softmax(r), c.dtype("self"))};
}

Values lower__masked_softmax_backward(Call& c) {
  Row grad = row(c, "grad_output", c.integer_or("dim", -1));
  const Value output = cast(c.tensor("output"), grad.x.dtype());
  const Value mask = c.b.broadcast_to(cast(c.tensor("mask"), DType::kBool), grad.x.dims());
  const Value zero = zeros_like(grad.x);
  grad.x = c.b.select(mask, zero, grad.x);
  // Selected again: a row with nothing left has an output of NaN, and its gradient is zero.
  const Value kept = c.b.select(mask, zero, output);
  return {cast(softmax_backward(grad, kept), c.dtype("grad_output"))};
}

}  // namespace

void add_softmax(Entries& t) {
  t.push_back({.name = "_softmax", .lower = lower__softmax});
  t.push_back({.name = "_log_softmax", .lower = lower__log_softmax});
  t.push_back({.name = "_softmax_backward_data", .lower = lower__softmax_backward_data});
  t.push_back({.name = "_log_softmax_backward_data", .lower = lower__log_softmax_backward_data});
  t.push_back({.name = "_masked_softmax", .lower = lower__masked_softmax, .no_meta = true});
  t.push_back({.name = "_masked_softmax_backward",
               .lower = lower__masked_softmax_backward,
               .no_meta = true});
}

}  // namespace torch_tpu::ops
