// Connectionist temporal classification: the loss and its gradient. Lengths are tensors, so that a
// new batch runs the same program; the int[] forms are in dispatch/ctc.cpp, which also brings the
// targets into a matrix [batch, longest].
#include <limits>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// The extended targets: blank, l0, blank, l1, ..., blank. States are [batch, 2 * longest + 1].
struct Trellis {
  int64_t steps, batch, classes, states;
  Value log_probs;      // [steps, batch, classes], in the type of the arithmetic
  Value labels;         // s32 [batch, states]
  Value skips;          // bool [batch, states]: may come from two states before
  Value input_lengths;  // s32 [batch]
  Value num_states;     // s32 [batch]: 2 * target length + 1
  Dims state_dims() const { return {batch, states}; }
};

Value shift_right(const Value& x, int64_t by, double fill) {
  Builder& b = x.builder();
  if (by >= x.dim(1)) return b.like(x, fill);
  return b.pad(b.slice_dim(x, 1, 0, x.dim(1) - by), b.scalar(fill, x.dtype()), {0, by}, {0, 0});
}

Value shift_left(const Value& x, int64_t by, double fill) {
  Builder& b = x.builder();
  if (by >= x.dim(1)) return b.like(x, fill);
  return b.pad(b.slice_dim(x, 1, by, x.dim(1)), b.scalar(fill, x.dtype()), {0, 0}, {0, by});
}

Trellis trellis_of(Call& c) {
  Builder& b = c.b;
  Trellis t;
  const Value log_probs = c.tensor("log_probs");
  const Value targets = c.tensor("targets");
  t.steps = log_probs.dim(0);
  t.batch = log_probs.dim(1);
  t.classes = log_probs.dim(2);
  t.states = 2 * targets.dim(1) + 1;
  t.log_probs = b.convert(log_probs, opmath(log_probs.dtype()));
  const auto blank = c.integer("blank");
  const Value plain = cast(targets, DType::kS32);
  // One blank before each target, one behind the last.
  t.labels = b.pad(plain, b.scalar(blank, DType::kS32), {0, 1}, {0, 1}, {0, 1});
  if (targets.dim(1) == 0) t.labels = full(b, blank, DType::kS32, {t.batch, 1});
  const Value differs = b.ne(t.labels, shift_right(t.labels, 2, -1));
  t.skips = b.and_(differs, b.ne(t.labels, b.like(t.labels, blank)));
  const Value second = b.ge(b.iota(t.labels.type(), 1), b.like(t.labels, 2));
  t.skips = b.and_(t.skips, second);
  t.input_lengths = cast(c.tensor("input_lengths"), DType::kS32);
  t.num_states = cast(c.tensor("target_lengths"), DType::kS32) * 2.0 + 1;
  return t;
}

// log(exp(a) + exp(b) + exp(c)), -inf included.
Value log_sum(const Values& terms) {
  Builder& b = terms[0].builder();
  Value top = terms[0];
  for (const Value& term : terms) top = b.maximum(top, term);
  const Value safe = b.select(b.eq(top, b.like(top, -kInf)), zeros_like(top), top);
  Value sum = zeros_like(top);
  for (const Value& term : terms) sum = b.add(sum, b.exponential(b.subtract(term, safe)));
  return b.add(b.log(sum), safe);
}

// log_probs of step `at` (0-d s32) for each state: [batch, states].
Value emissions(const Trellis& t, const Value& at) {
  Builder& b = t.labels.builder();
  const Value zero = b.scalar(0, DType::kS32);
  const Value row =
      b.reshape(b.dynamic_slice(t.log_probs, {at, zero, zero}, {1, t.batch, t.classes}),
                {t.batch, t.classes});
  return take_along(row, t.labels, 1);
}

Value state_numbers(const Trellis& t) {
  return t.labels.builder().iota(Type(DType::kS32, t.state_dims()), 1);
}

Value spread(const Trellis& t, const Value& per_batch) {
  return per_batch.builder().broadcast_in_dim(per_batch, t.state_dims(), {0});
}

// One step of the forward recursion.
Value advance(const Trellis& t, const Value& alpha, const Value& emission) {
  Builder& b = alpha.builder();
  const Value from_two = b.select(t.skips, shift_right(alpha, 2, -kInf), b.like(alpha, -kInf));
  return b.add(log_sum({alpha, shift_right(alpha, 1, -kInf), from_two}), emission);
}

// Stores a [batch, states] row as step `at` of [batch, steps, states].
Value store_step(const Value& all, const Value& row, const Value& at) {
  Builder& b = all.builder();
  const Value zero = b.scalar(0, DType::kS32);
  return b.dynamic_update_slice(all, b.reshape(row, {row.dim(0), 1, row.dim(1)}), {zero, at, zero});
}

Values lower_ctc_loss(Call& c) {
  Builder& b = c.b;
  const Trellis t = trellis_of(c);
  const DType type = t.log_probs.dtype();
  const Value zero = b.scalar(0, DType::kS32);
  const Value state = state_numbers(t);
  const Value first = b.lt(state, b.minimum(b.like(state, 2), spread(t, t.num_states)));
  const Value none = full(b, -kInf, type, t.state_dims());
  const Value all = full(b, -kInf, type, {t.batch, t.steps, t.states});
  Values done;
  if (t.steps == 0) {
    done = {zero, none, none, all};
  } else {
    const Value start = b.select(first, emissions(t, zero), none);
    // alpha now, alpha at each sequence's last step, all of them
    done = b.while_loop(
        {b.scalar(1, DType::kS32), start, start, store_step(all, start, zero)},
        [&](const Values& s) -> Values { return {b.lt(s[0], b.scalar(t.steps, DType::kS32))}; },
        [&](const Values& s) -> Values {
          const Value alpha = advance(t, s[1], emissions(t, s[0]));
          const Value running = b.lt(b.broadcast_to(s[0], {t.batch}), t.input_lengths);
          const Value last = b.select(spread(t, running), alpha, s[2]);
          return {s[0] + 1, alpha, last, store_step(s[3], alpha, s[0])};
        });
  }
  // The sequence ends in the last blank or the last label. Without steps, only the empty target is
  // possible.
  const Value end = spread(t, t.num_states);
  const Value ends = b.and_(b.ge(state, end - 2), b.lt(state, end));
  const Value final_alpha = b.select(ends, done[2], none);
  const Value top = reduce_max(final_alpha, {1});
  const Value safe = b.select(b.eq(top, b.like(top, -kInf)), zeros_like(top), top);
  Value loss =
      -b.add(b.log(reduce_sum(b.exponential(b.subtract(final_alpha, spread(t, safe))), {1})), safe);
  const Value no_input = b.eq(t.input_lengths, zeros_like(t.input_lengths));
  const Value no_target = b.eq(t.num_states, ones_like(t.num_states));
  const Value empty = b.select(no_target, zeros_like(loss), b.like(loss, kInf));
  loss = b.select(no_input, empty, loss);
  return {loss, done[3]};
}

Values lower_ctc_loss_backward(Call& c) {
  Builder& b = c.b;
  const Trellis t = trellis_of(c);
  const DType type = t.log_probs.dtype();
  const Value loss = b.convert(c.tensor("neg_log_likelihood"), type);
  const Value alphas = b.convert(c.tensor("log_alpha"), type);
  const Value grad = b.convert(c.tensor("grad"), type);
  if (t.log_probs.numel() == 0) return {t.log_probs};
  const Value state = state_numbers(t);
  const Value none = full(b, -kInf, type, t.state_dims());
  const Value end = spread(t, t.num_states);
  const Value ends = b.and_(b.ge(state, end - 2), b.lt(state, end));
  const Value valid = b.lt(state, end);
  const Value skips_on = b.and_(shift_left(t.skips, 2, 0), b.lt(state + 2, end));
  const Value zero = b.scalar(0, DType::kS32);

  // Posterior probability of each class at each step, from the end to the start.
  const Values done = b.while_loop(
      {b.scalar(t.steps - 1, DType::kS32), none, full(b, 0, type, {t.steps, t.batch, t.classes})},
      [&](const Values& s) -> Values { return {b.ge(s[0], zero)}; },
      [&](const Values& s) -> Values {
        const Value emission = emissions(t, s[0]);
        const Value two = b.select(skips_on, shift_left(s[1], 2, -kInf), none);
        const Value on = b.add(log_sum({s[1], shift_left(s[1], 1, -kInf), two}), emission);
        const Value last = b.eq(b.broadcast_to(s[0] + 1, {t.batch}), t.input_lengths);
        Value beta = b.select(spread(t, last), b.select(ends, emission, none), on);
        beta = b.select(valid, beta, none);
        const Value alpha = b.reshape(
            b.dynamic_slice(alphas, {zero, s[0], zero}, {t.batch, 1, t.states}), t.state_dims());
        const Value log_both = b.add(b.subtract(b.add(alpha, beta), emission), spread(t, loss));
        const Value impossible = b.or_(b.eq(alpha, none), b.eq(beta, none));
        const Value share = b.select(impossible, zeros_like(beta), b.exponential(log_both));
        const Value by_class =
            put_along(full(b, 0, type, {t.batch, t.classes}), t.labels, share, 1, Combine::kAdd);
        const Value stored = b.dynamic_update_slice(
            s[2], b.reshape(by_class, {1, t.batch, t.classes}), {s[0], zero, zero});
        return {s[0] - 1, beta, stored};
      });

  const Dims& dims = t.log_probs.dims();
  const auto over_batch = [&](const Value& x) { return b.broadcast_in_dim(x, dims, {1}); };
  Value result = b.multiply(b.subtract(b.exponential(t.log_probs), done[2]), over_batch(grad));
  const Value running = b.lt(b.iota(Type(DType::kS32, dims), 0), over_batch(t.input_lengths));
  result = b.select(running, result, zeros_like(result));
  // An impossible sequence has no gradient: NaN, as on CPU, unless asked for zeros.
  const Value infinite = b.and_(running, over_batch(b.eq(loss, b.like(loss, kInf))));
  const double there = c.flag("zero_infinity") ? 0 : std::numeric_limits<double>::quiet_NaN();
  result = b.select(infinite, b.like(result, there), result);
  return {result};
}

}  // namespace

void add_ctc(Entries& t) {
  t.push_back(
      {.name = "_ctc_loss.Tensor", .lower = lower_ctc_loss, .internal = true, .no_meta = true});
  t.push_back({.name = "_ctc_loss_backward.Tensor",
               .lower = lower_ctc_loss_backward,
               .internal = true,
               .no_meta = true});
}

}  // namespace torch_tpu::ops
