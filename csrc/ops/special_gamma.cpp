// Regularized incomplete gamma functions: the power series where x <= max(1, a), the continued
// fraction of the complement beyond it (Cephes' igam and igamc).
#include <limits>
#include <numbers>

#include "csrc/ops/special.h"

namespace torch_tpu::ops::math {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kMaxSteps = 2000;

double epsilon(const Value& x) { return x.dtype() == DType::kF64 ? 0x1p-53 : 0x1p-24; }

// x^a exp(-x) / gamma(a)
Value prefactor(const Value& a, const Value& x) {
  Builder& b = a.builder();
  const Value direct = exp(a * log(x) - x - lgamma(a));
  // For large a the logarithms cancel; Stirling's series takes them together.
  const Value mu = (x - a) / a;
  const Value inverse = 1.0 / a, square = inverse * inverse;
  const Value stirling =
      inverse * (1.0 / 12 - square * (1.0 / 360 - square * (1.0 / 1260 - square * (1.0 / 1680))));
  const Value large = sqrt(a * (0.5 * std::numbers::inv_pi)) * exp(a * (log1p(mu) - mu) - stirling);
  return b.select(is(Compare::kGt, a, 10), large, direct);
}

// Whether any element is still open; state = (step, open, ...).
Values any_open(const Values& state) {
  Builder& b = state[0].builder();
  const Value& open = state[1];
  const Value left = b.reduce(open, b.scalar(0, DType::kBool), range(open.rank()), Reduction::kOr);
  return {b.and_(left, is(Compare::kLt, state[0], kMaxSteps))};
}

// igamma / prefactor, by the series sum x^k / (a (a+1) ... (a+k)). Only where `wanted`.
Value series(const Value& a, const Value& x, const Value& wanted) {
  Builder& b = a.builder();
  const auto next = [&](const Values& s) -> Values {
    const Value open = s[1], r = s[2] + 1;
    const Value term = s[3] * x / r;
    const Value sum = b.select(open, s[4] + term, s[4]);
    const Value goes_on = b.gt(term, sum * epsilon(x));
    return {s[0] + 1, b.and_(open, goes_on), r, term, sum};
  };
  const Values inits = {b.scalar(0, x.dtype()), wanted, a, ones_like(x), ones_like(x)};
  return b.while_loop(inits, any_open, next)[4] / a;
}

// igammac / prefactor, by its continued fraction. Only where `wanted`.
Value fraction(const Value& a, const Value& x, const Value& wanted) {
  Builder& b = a.builder();
  const double big = 1 / epsilon(x);
  // 2: y, 3: z, 4: c, 5, 6: numerators k-1, k-2, 7, 8: denominators, 9: result
  const auto next = [&](const Values& s) -> Values {
    const Value c = s[4] + 1, y = s[2] + 1, z = s[3] + 2;
    const Value yc = y * c;
    const Value pk = s[5] * z - s[6] * yc, qk = s[7] * z - s[8] * yc;
    const Value usable = is(Compare::kNe, qk, 0);
    const Value r = pk / b.select(usable, qk, ones_like(qk));
    const Value error = b.select(usable, abs((s[9] - r) / r), ones_like(r));
    const Value open = s[1];
    const Value result = b.select(b.and_(open, usable), r, s[9]);
    const Value rescale =
        b.select(is(Compare::kGt, abs(pk), big), b.like(x, 1 / big), ones_like(x));
    return {s[0] + 1,
            b.and_(open, is(Compare::kGt, error, epsilon(x))),
            y,
            z,
            c,
            pk * rescale,
            s[5] * rescale,
            qk * rescale,
            s[7] * rescale,
            result};
  };
  const Value y = 1.0 - a, z = x + y + 1;
  const Value p1 = x + 1, q1 = z * x;
  const Values inits = {b.scalar(0, x.dtype()), wanted, y, z,      zeros_like(x), p1,
                        ones_like(x),           q1,     x, p1 / q1};
  return b.while_loop(inits, any_open, next)[9];
}

Value incomplete(const Value& a, const Value& x, bool complement) {
  Builder& b = a.builder();
  const Value ordinary = b.and_(b.and_(is(Compare::kGt, a, 0), is(Compare::kGt, x, 0)),
                                b.and_(isfinite(a), isfinite(x)));
  const Value by_fraction = b.and_(is(Compare::kGt, x, 1), b.gt(x, a));
  const Value factor = prefactor(a, x);
  const Value lower = factor * series(a, x, b.and_(ordinary, b.not_(by_fraction)));
  const Value upper = factor * fraction(a, x, b.and_(ordinary, by_fraction));
  Value result = complement ? b.select(by_fraction, upper, 1.0 - lower)
                            : b.select(by_fraction, 1.0 - upper, lower);
  const double all = complement ? 0 : 1, none = complement ? 1 : 0;
  result = choose(is(Compare::kEq, x, kInf), all, result);
  result = choose(is(Compare::kEq, a, kInf), none, result);
  result = choose(b.and_(is(Compare::kEq, a, kInf), is(Compare::kEq, x, kInf)), kNan, result);
  result = choose(is(Compare::kEq, x, 0), none, result);
  // a = 0: everything lies below any positive x.
  const Value degenerate = is(Compare::kEq, a, 0);
  result = choose(b.and_(degenerate, is(Compare::kGt, x, 0)), all, result);
  result = choose(b.and_(degenerate, is(Compare::kEq, x, 0)), kNan, result);
  const Value invalid =
      b.or_(b.or_(is(Compare::kLt, a, 0), is(Compare::kLt, x, 0)), b.or_(isnan(a), isnan(x)));
  return choose(invalid, kNan, result);
}

}  // namespace

Value igamma(const Value& a, const Value& x) { return incomplete(a, x, false); }
Value igammac(const Value& a, const Value& x) { return incomplete(a, x, true); }

}  // namespace torch_tpu::ops::math
