#include "csrc/ops/linalg_jacobi.h"

namespace torch_tpu::ops::linalg {

Rotation rotation_for(const Value& alpha, const Value& beta, const Value& gamma) {
  Builder& b = alpha.builder();
  const Value size = b.abs(gamma);
  const Value none = b.eq(size, zeros_like(size));
  const Value one = ones_like(size);
  const Value divisor = b.select(none, one, size);
  const Value theta = (beta - alpha) / (divisor * 2.0);
  const Value flat = b.abs(theta) + b.sqrt(theta * theta + 1.0);
  const Value tangent = b.select(b.ge(theta, zeros_like(theta)), one, -one) / flat;
  const Value t = b.select(none, zeros_like(tangent), tangent);
  const Value c = b.rsqrt(t * t + 1.0);
  const Value unit = gamma / cast(divisor, gamma.dtype());
  const Value w = b.select(none, ones_like(gamma), conj(unit));
  return {c, t * c, w, t * size};
}

Pair rotate(const Rotation& r, const Pair& x) {
  Builder& b = x.p.builder();
  const auto factor = [&](const Value& f) {
    return b.broadcast_to(cast(f, x.p.dtype()), x.p.dims());
  };
  const Value turned = factor(r.w) * x.q;
  return {factor(r.c) * x.p - factor(r.s) * turned, factor(r.s) * x.p + factor(r.c) * turned};
}

Pair halves(const Value& x, int64_t dim) {
  Builder& b = x.builder();
  const int64_t half = x.dim(dim) / 2;
  return {b.slice_dim(x, dim, 0, half), b.slice_dim(x, dim, half, 2 * half)};
}

Value joined(const Pair& x, int64_t dim) { return x.p.builder().concatenate({x.p, x.q}, dim); }

Value next_round(const Value& x, int64_t dim) {
  Builder& b = x.builder();
  const int64_t n = x.dim(dim), half = n / 2;
  if (n == 2) return x;
  const auto part = [&](int64_t from, int64_t to) { return b.slice_dim(x, dim, from, to); };
  Values parts = {part(0, 1), part(half, half + 1)};
  if (half > 2) parts.push_back(part(1, half - 1));
  parts.push_back(part(half + 1, n));
  parts.push_back(part(half - 1, half));
  return b.concatenate(parts, dim);
}

Values sweeps(Builder& b, int64_t steps, const Values& inits, const Step& step) {
  const auto with = [](std::initializer_list<Value> first, const Values& rest) {
    Values all = first;
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  };
  const auto without = [](const Values& all, int64_t n) {
    return Values(all.begin() + n, all.end());
  };
  const Value no = b.scalar(0, DType::kBool), yes = b.scalar(1, DType::kBool);
  const auto one = [&](const Value&, const Values& state) {
    const auto [next, open] = step(without(state, 1));
    return with({b.or_(state[0], open)}, next);
  };
  const Values last = b.while_loop(
      with({index(b, 0), yes}, inits),
      [&](const Values& state) {
        return Values{b.and_(b.lt(state[0], index(b, kMaxSweeps)), state[1])};
      },
      [&](const Values& state) {
        const Values swept = counted_loop(b, steps, with({no}, without(state, 2)), one);
        return with({state[0] + 1}, swept);
      });
  return without(last, 2);
}

Value any(const Value& x) {
  Builder& b = x.builder();
  return b.reduce(x, b.scalar(0, DType::kBool), range(x.rank()), Reduction::kOr);
}

Value scale_of(const Value& x) {
  Builder& b = x.builder();
  const Value largest = reduce_max(b.abs(x), {1, 2}, true);
  const Value usable = b.and_(b.is_finite(largest), b.gt(largest, zeros_like(largest)));
  return b.select(usable, largest, ones_like(largest));
}

Value info_of_nans(const Value& x, int64_t info) {
  Builder& b = x.builder();
  const Value bad = cast(b.ne(x, x), DType::kS32) * info;
  return info < 0 ? reduce_min(bad, {1, 2}) : reduce_max(bad, {1, 2});
}

}  // namespace torch_tpu::ops::linalg
