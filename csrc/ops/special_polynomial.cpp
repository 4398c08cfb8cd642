// Orthogonal polynomials of a degree that is data: the three-term recurrence in a loop until every
// element has reached its degree, with closed forms where CPU's kernels use them.
#include <limits>

#include "csrc/ops/special.h"

namespace torch_tpu::ops::math {
namespace {

// CPU's conversion to an integer makes a degree that is not finite negative.
Value whole(const Value& degree) {
  return choose(degree.builder().not_(isfinite(degree)), -1, trunc(degree));
}

// The polynomial of degree m from those of degrees m - 1 (q) and m - 2 (p).
using Step = Value (*)(const Value& x, const Value& m, const Value& q, const Value& p);

// `first` is the polynomial of degree 1. Where `closed`, the result is not needed: no steps.
Value recurrence(const Value& x, const Value& n, const Value& first, const Value& closed,
                 Step step) {
  Builder& b = x.builder();
  const auto active = [&](const Values& state) {
    const Value m = b.broadcast_to(state[0], x.dims());
    const Value wanted = b.and_(b.le(m, n), b.not_(isnan(state[1])));
    const Value countable = is(Compare::kLt, m, 0x1p24);  // f32 counts no further
    return b.and_(b.and_(wanted, countable), b.not_(closed));
  };
  const auto unfinished = [&](const Values& state) -> Values {
    return {b.reduce(active(state), b.scalar(0, DType::kBool), range(x.rank()), Reduction::kOr)};
  };
  const auto next = [&](const Values& state) -> Values {
    const Value here = active(state);
    const Value m = b.broadcast_to(state[0], x.dims());
    return {state[0] + 1, b.select(here, step(x, m, state[1], state[2]), state[1]),
            b.select(here, state[1], state[2])};
  };
  const Values inits = {b.scalar(2, x.dtype()), first, ones_like(x)};
  const Value result = b.while_loop(inits, unfinished, next)[1];
  return b.select(is(Compare::kEq, n, 0), ones_like(x), result);
}

Value zero_below(const Value& n, const Value& result) {
  return n.builder().select(is(Compare::kLt, n, 0), zeros_like(result), result);
}

// (-1)^n
Value alternating(const Value& n) { return 1.0 - (n - floor(n * 0.5) * 2) * 2; }

Value chebyshev_step(const Value& x, const Value&, const Value& q, const Value& p) {
  return (x + x) * q - p;
}

Value hermite_h_step(const Value& x, const Value& m, const Value& q, const Value& p) {
  return (x + x) * q - (m - 1) * 2 * p;
}

Value hermite_he_step(const Value& x, const Value& m, const Value& q, const Value& p) {
  return x * q - (m - 1) * p;
}

Value laguerre_step(const Value& x, const Value& m, const Value& q, const Value& p) {
  const Value k = m - 1;
  return ((k + k + (1.0 - x)) * q - k * p) / m;
}

Value legendre_step(const Value& x, const Value& m, const Value& q, const Value& p) {
  const Value k = m - 1;
  return ((k + k + 1) * x * q - k * p) / m;
}

enum class Kind { kT, kU, kV, kW };

// Inside (-1, 1) degrees above `limit` use the trigonometric form.
Value chebyshev(Kind kind, const Value& x, const Value& degree, double limit) {
  Builder& b = x.builder();
  const Value n = whole(degree);
  const Value theta = acos(x), half = theta * 0.5;
  Value first, at_one, at_minus_one, closed;
  switch (kind) {
    case Kind::kT:
      first = x;
      at_one = ones_like(x);
      at_minus_one = alternating(n);
      closed = cos(n * theta);
      break;
    case Kind::kU: {
      first = x + x;
      at_one = n + 1;
      at_minus_one = alternating(n) * (n + 1);
      const Value angle = (n + 1) * theta;
      closed = b.select(is(Compare::kNe, sin(theta), 0), sin(angle) / sin(theta),
                        (n + 1) * cos(angle) / x);
      break;
    }
    case Kind::kV:
      first = x + x - 1;
      at_one = ones_like(x);
      at_minus_one = alternating(n) * (n + n + 1);
      closed = b.select(is(Compare::kNe, sin(half), 1), cos((n + 0.5) * theta) / cos(half),
                        at_minus_one);
      break;
    case Kind::kW:
      first = x + x + 1;
      at_one = n + n + 1;
      at_minus_one = alternating(n);
      closed = b.select(is(Compare::kNe, cos(half), 1), sin((n + 0.5) * theta) / sin(half), at_one);
      break;
  }
  const Value inside = is(Compare::kLt, abs(x), 1);
  const Value use_closed = b.and_(inside, is(Compare::kGt, n, limit));
  const Value edge = is(Compare::kEq, abs(x), 1);
  Value result = recurrence(x, n, first, b.or_(use_closed, edge), chebyshev_step);
  result = b.select(use_closed, closed, result);
  result = b.select(edge, b.select(is(Compare::kGt, x, 0), at_one, at_minus_one), result);
  return zero_below(n, result);
}

Value nowhere(const Value& x) { return full(x.builder(), 0, DType::kBool, x.dims()); }

// Beyond this degree the values overflow, and CPU returns NaN.
Value hermite(const Value& x, const Value& degree, const Value& first, Step step) {
  Builder& b = x.builder();
  const Value n = whole(degree);
  const Value too_high = is(Compare::kGt, n, x.dtype() == DType::kF64 ? 512 : 128);
  const Value result = recurrence(x, n, first, too_high, step);
  const Value nan = b.like(x, std::numeric_limits<double>::quiet_NaN());
  return zero_below(n, b.select(too_high, nan, result));
}

}  // namespace

Value chebyshev_polynomial_t(const Value& x, const Value& n) {
  return chebyshev(Kind::kT, x, n, 6);
}

Value chebyshev_polynomial_u(const Value& x, const Value& n) {
  return chebyshev(Kind::kU, x, n, 8);
}

Value chebyshev_polynomial_v(const Value& x, const Value& n) {
  return chebyshev(Kind::kV, x, n, 8);
}

Value chebyshev_polynomial_w(const Value& x, const Value& n) {
  return chebyshev(Kind::kW, x, n, 8);
}

Value shifted_chebyshev_polynomial_t(const Value& x, const Value& n) {
  return chebyshev(Kind::kT, x + x - 1, n, 6);
}

Value shifted_chebyshev_polynomial_u(const Value& x, const Value& n) {
  return chebyshev(Kind::kU, x + x - 1, n, 6);
}

Value shifted_chebyshev_polynomial_v(const Value& x, const Value& n) {
  return chebyshev(Kind::kV, x + x - 1, n, 6);
}

Value shifted_chebyshev_polynomial_w(const Value& x, const Value& n) {
  return chebyshev(Kind::kW, x + x - 1, n, 4);
}

Value hermite_polynomial_h(const Value& x, const Value& n) {
  return hermite(x, n, x + x, hermite_h_step);
}

Value hermite_polynomial_he(const Value& x, const Value& n) {
  return hermite(x, n, x, hermite_he_step);
}

Value laguerre_polynomial_l(const Value& x, const Value& degree) {
  const Value n = whole(degree);
  const Value at_zero = is(Compare::kEq, x, 0);
  const Value result = recurrence(x, n, 1.0 - x, at_zero, laguerre_step);
  return zero_below(n, x.builder().select(at_zero, ones_like(x), result));
}

Value legendre_polynomial_p(const Value& x, const Value& degree) {
  const Value n = whole(degree);
  return zero_below(n, recurrence(x, n, x, nowhere(x), legendre_step));
}

}  // namespace torch_tpu::ops::math
