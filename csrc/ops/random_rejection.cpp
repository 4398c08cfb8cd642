// Distributions that need a loop: counts by inversion when their mean is small, the rest by
// rejection. Each loop works on all elements at once and ends when none waits.
#include <cmath>

#include "csrc/ops/helpers.h"
#include "csrc/ops/random.h"

namespace torch_tpu::ops {
namespace {

// The stream of one iteration: `base` moved far enough that no two iterations overlap.
Value iteration_state(Builder& b, const Value& base, const Value& iteration) {
  const Value jump = b.multiply(iteration, b.splat_int(int64_t{1} << 40, iteration.type()));
  const Value step = b.pad(b.reshape(jump, {1}), b.scalar(0, DType::kU64), {1}, {0});
  return b.add(base, step);
}

struct Proposal {
  Values values;   // the new values of the carried ones, for waiting elements
  Value finished;  // bool: this element is done
};

// Every proposal is taken with a probability of at least 2/3, so nobody waits as long as this. What
// no proposal can satisfy (an infinite parameter) must not hang the device.
constexpr double kMaxProposals = 256;

// Runs `propose(state, carried)` until every element has finished. `waiting` says who takes part.
template <typename Propose>
Values until_accepted(Builder& b, const Value& state, int64_t stream, const Value& waiting,
                      const Values& carried, const Propose& propose) {
  const Value base = random_stream(b, state, stream);
  Values inits = {b.scalar(0, DType::kU64), waiting};
  inits.insert(inits.end(), carried.begin(), carried.end());
  const auto any_waiting = [&b](const Values& loop) -> Values {
    const Value& left = loop[1];
    const Value any = b.reduce(left, b.scalar(0, DType::kBool), range(left.rank()), Reduction::kOr);
    return {b.and_(any, b.lt(loop[0], b.like(loop[0], kMaxProposals)))};
  };
  const auto body = [&](const Values& loop) -> Values {
    const Value& left = loop[1];
    const Values old(loop.begin() + 2, loop.end());
    const Proposal p = propose(iteration_state(b, base, loop[0]), old);
    Values next = {loop[0] + 1.0, b.and_(left, b.not_(p.finished))};
    for (size_t i = 0; i < old.size(); ++i) next.push_back(b.select(left, p.values[i], old[i]));
    return next;
  };
  const Values done = b.while_loop(inits, any_waiting, body);
  return Values(done.begin() + 2, done.end());
}

Value uniform(Builder& b, const Value& state, int64_t stream, const Value& like) {
  return random_uniform01_open(b, random_stream(b, state, stream), like.dims(), like.dtype());
}

Value log_factorial(Builder& b, const Value& k) { return b.lgamma(k + 1.0); }

// log(k!) - Stirling's approximation of it: exact for small k, a series for the rest.
Value stirling_tail(Builder& b, const Value& k) {
  static const double kExact[] = {0.0810614667953272,  0.0413406959554092, 0.0276779256849983,
                                  0.02079067210376509, 0.0166446911898211, 0.0138761288230707,
                                  0.0118967099458917,  0.0104112652619720, 0.00925546218271273,
                                  0.00833056343336287};
  const Value k1 = k + 1.0;
  const Value square = b.multiply(k1, k1);
  const Value inner = b.subtract(b.like(k, 1.0 / 360), b.divide(b.like(k, 1.0 / 1260), square));
  Value tail = b.divide(b.subtract(b.like(k, 1.0 / 12), b.divide(inner, square)), k1);
  for (int i = 0; i < 10; ++i) {
    tail = b.select(b.eq(k, b.like(k, i)), b.like(k, kExact[i]), tail);
  }
  return tail;
}

// Walks the probabilities of 0, 1, 2, ... until their sum passes one uniform number; for means
// below 10. `first` is the probability of 0, `next(p, k)` that of k from that of k - 1. No draw
// takes more steps than kMaxSteps but for 1 in 10^20, and then rounding decides anyway.
template <typename Next>
Value by_inversion(Builder& b, const Value& state, const Value& first, const Value& waiting,
                   const Next& next) {
  constexpr double kMaxSteps = 64;
  const Value u = random_uniform01_open(b, random_stream(b, state, 0), first.dims(), first.dtype());
  const auto past = [&](const Value& sum) { return b.gt(u, sum); };
  const Values inits = {b.and_(waiting, past(first)), zeros_like(first), first, first};
  const auto any_left = [&b](const Values& loop) -> Values {
    return {b.reduce(loop[0], b.scalar(0, DType::kBool), range(loop[0].rank()), Reduction::kOr)};
  };
  const auto step = [&](const Values& loop) -> Values {
    const Value k = b.select(loop[0], loop[1] + 1.0, loop[1]);
    const Value p = next(loop[2], loop[1] + 1.0);
    const Value sum = b.add(loop[3], p);
    const Value left = b.and_(b.and_(loop[0], past(sum)), b.lt(k, b.like(k, kMaxSteps)));
    return {left, k, p, sum};
  };
  return b.while_loop(inits, any_left, step)[1];
}

// Hörmann's transformed rejection (PTRS), for rates from 10.
Value poisson_by_rejection(Builder& b, const Value& state, const Value& given,
                           const Value& waiting) {
  const Value rate = b.maximum(given, b.like(given, 10));
  const Value log_rate = b.log(rate);
  const Value width = b.sqrt(rate) * 2.53 + 0.931;
  const Value a = width * 0.02483 - 0.059;
  const Value inverse_alpha = 1.1328 / (width - 3.4) + 1.1239;
  const Value quick = 0.9277 - 3.6224 / (width - 2.0);
  const auto propose = [&](const Value& s, const Values&) -> Proposal {
    const Value u = uniform(b, s, 0, rate) - 0.5;
    const Value v = uniform(b, s, 1, rate);
    const Value edge = 0.5 - b.abs(u);
    const Value k = b.floor((a * 2.0 / edge + width) * u + rate + 0.43);
    const Value accepted_at_once = b.and_(b.ge(edge, b.like(edge, 0.07)), b.le(v, quick));
    const Value rejected =
        b.or_(b.lt(k, zeros_like(k)), b.and_(b.lt(edge, b.like(edge, 0.013)), b.gt(v, edge)));
    const Value proposal_density = b.log(v * inverse_alpha / (a / (edge * edge) + width));
    const Value density = k * log_rate - rate - log_factorial(b, k);
    const Value accepted = b.and_(b.not_(rejected), b.le(proposal_density, density));
    return {{k}, b.or_(accepted_at_once, accepted)};
  };
  return until_accepted(b, state, 1, waiting, {zeros_like(rate)}, propose)[0];
}

// Hörmann's transformed rejection (BTRS), for a mean from 10 and prob up to 1/2.
Value binomial_by_rejection(Builder& b, const Value& state, const Value& n, const Value& p,
                            const Value& waiting) {
  const Value deviation = b.sqrt(n * p * (1.0 - p));
  const Value width = deviation * 2.53 + 1.15;
  const Value a = width * 0.0248 + p * 0.01 - 0.0873;
  const Value center = n * p + 0.5;
  const Value quick = 0.92 - 4.2 / width;
  const Value odds = p / (1.0 - p);
  const Value alpha = (5.1 / width + 2.83) * deviation;
  const Value mode = b.floor((n + 1.0) * p);
  const Value at_mode = (mode + 0.5) * b.log((mode + 1.0) / (odds * (n - mode + 1.0))) +
                        stirling_tail(b, mode) + stirling_tail(b, n - mode);
  const auto propose = [&](const Value& s, const Values&) -> Proposal {
    const Value u = uniform(b, s, 0, p) - 0.5;
    const Value v = uniform(b, s, 1, p);
    const Value edge = 0.5 - b.abs(u);
    const Value k = b.floor((a * 2.0 / edge + width) * u + center);
    const Value accepted_at_once = b.and_(b.ge(edge, b.like(edge, 0.07)), b.le(v, quick));
    const Value outside = b.or_(b.lt(k, zeros_like(k)), b.gt(k, n));
    const Value proposal_density = b.log(v * alpha / (a / (edge * edge) + width));
    const Value rest = n - k + 1.0;
    const Value density = at_mode + (n + 1.0) * b.log((n - mode + 1.0) / rest) +
                          (k + 0.5) * b.log(rest * odds / (k + 1.0)) - stirling_tail(b, k) -
                          stirling_tail(b, n - k);
    const Value accepted = b.and_(b.not_(outside), b.le(proposal_density, density));
    return {{k}, b.or_(accepted_at_once, accepted)};
  };
  return until_accepted(b, state, 1, waiting, {zeros_like(p)}, propose)[0];
}

}  // namespace

Value random_poisson(Builder& b, const Value& state, const Value& rate) {
  if (rate.numel() == 0) return rate;
  const Value large = b.ge(rate, b.like(rate, 10));
  const Value small = b.lt(rate, b.like(rate, 10));
  const auto next = [&](const Value& p, const Value& k) { return p * rate / k; };
  return b.select(large, poisson_by_rejection(b, state, rate, large),
                  by_inversion(b, state, b.exponential(b.negate(rate)), small, next));
}

Value random_binomial(Builder& b, const Value& state, const Value& count, const Value& prob) {
  if (count.numel() == 0) return count;
  // Failures are counted instead when they are the rarer.
  const Value flipped = b.gt(prob, b.like(prob, 0.5));
  const Value p = b.select(flipped, 1.0 - prob, prob);
  const Value mean = count * p;
  const Value large = b.ge(mean, b.like(mean, 10));
  const Value small = b.lt(mean, b.like(mean, 10));
  // The other elements take harmless parameters.
  const Value safe_n = b.select(large, count, b.like(count, 40));
  const Value safe_p = b.select(large, p, b.like(p, 0.5));
  const Value none = b.exponential(count * b.log_plus_one(b.negate(p)));
  const Value odds = p / (1.0 - p);
  const auto next = [&](const Value& before, const Value& k) {
    return before * odds * (count - k + 1.0) / k;
  };
  const Value k = b.select(large, binomial_by_rejection(b, state, safe_n, safe_p, large),
                           by_inversion(b, state, none, small, next));
  const Value result = b.select(flipped, count - k, k);
  return b.select(b.ne(mean, mean), mean, result);  // NaN goes through
}

// Marsaglia and Tsang; below 1, a draw for alpha + 1 times u^(1 / alpha).
Value random_gamma(Builder& b, const Value& state, const Value& alpha) {
  if (alpha.numel() == 0) return alpha;
  const Value one = ones_like(alpha);
  const Value boosted = b.lt(alpha, one);
  const Value shape = b.select(boosted, alpha + 1.0, alpha);
  const Value d = shape - 1.0 / 3;
  const Value c = b.rsqrt(d) / 3.0;
  const auto propose = [&](const Value& s, const Values&) -> Proposal {
    const Value x = random_normal(b, random_stream(b, s, 0), alpha.dims(), alpha.dtype());
    const Value u = uniform(b, s, 1, alpha);
    const Value root = c * x + 1.0;
    const Value v = root * root * root;
    const Value positive = b.gt(v, zeros_like(v));
    const Value log_v = b.log(b.select(positive, v, one));
    const Value bound = x * x * 0.5 + d * (1.0 - v + log_v);
    return {{v}, b.and_(positive, b.lt(b.log(u), bound))};
  };
  const Value everyone = b.eq(alpha, alpha);  // all but NaN
  const Value v = until_accepted(b, state, 0, everyone, {one}, propose)[0];
  const Value boost = b.power(uniform(b, state, 1, alpha), one / alpha);
  const Value sample = d * v * b.select(boosted, boost, one);
  const double tiny = alpha.dtype() == DType::kF64 ? std::ldexp(1.0, -1022) : std::ldexp(1.0, -126);
  return b.maximum(sample, b.like(sample, tiny));
}

}  // namespace torch_tpu::ops
