// Error function, gamma function and their kin.
#include "csrc/ops/special.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace torch_tpu::ops::math {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPi = std::numbers::pi;

}  // namespace

Value polynomial(const Value& x, const std::vector<double>& coefficients) {
  Value result = x.builder().like(x, coefficients.at(0));
  for (size_t i = 1; i < coefficients.size(); ++i) {
    result = result * x + coefficients[i];
  }
  return result;
}

Value chebyshev(const Value& x, const std::vector<double>& coefficients) {
  size_t first = 0;
  if (x.dtype() == DType::kF32) {
    // Terms that an f32 sum cannot see.
    while (first + 2 < coefficients.size() && std::abs(coefficients[first]) < 1e-9) {
      ++first;
    }
  }
  Value b0 = x.builder().like(x, coefficients.at(first)), b1 = zeros_like(x), b2 = b1;
  for (size_t i = first + 1; i < coefficients.size(); ++i) {
    b2 = b1;
    b1 = b0;
    b0 = x * b1 - b2 + coefficients[i];
  }
  return (b0 - b2) * 0.5;
}

Value erf(const Value& x) {
  Builder& b = x.builder();
  if (x.dtype() == DType::kF64) {
    return b.erf(x);
  }
  // The f32 approximation stops at 1 - 3 ulp, where x * (1 - erf(x)) would grow without bound.
  return b.select(is(Compare::kGt, abs(x), 3.925), sign(x), b.erf(x));
}

Value erfc(const Value& x) { return x.builder().erfc(x); }

// The series leaves a relative error of 5e-7. One Newton step takes it to the last bit: in the
// tails on erfc, where 1 - |x| is exact and erfc keeps its relative precision.
Value erfinv(const Value& x) {
  Builder& b = x.builder();
  const Value start = b.erf_inv(x);
  if (x.dtype() != DType::kF32) return start;
  const Value size = abs(x), y = abs(start);
  const Value middle = size - erf(y), tail = erfc(y) - (1 - size);
  const Value missing = b.select(is(Compare::kLt, size, 0.5), middle, tail);
  constexpr double kHalfSqrtPi = 0.88622692545275801365;
  const Value better = y + missing * kHalfSqrtPi * exp(y * y);
  // At zero the series keeps the sign; at the ends and beyond it is already infinite or NaN.
  const Value inside = b.and_(is(Compare::kGt, size, 0), is(Compare::kLt, size, 1));
  return b.select(inside, sign(x) * better, start);
}

// exp(x^2) erfc(x). For x >= 0 a Chebyshev series of (1 + 2x) erfcx(x) in (x - k) / (x + k).
Value erfcx(const Value& x) {
  static const std::vector<double> kSeries = {
      5.068148904796111e-17,  7.418235256624044e-17,   -1.2507950530688648e-15,
      -1.864562880419313e-15, 3.3478119482868056e-14,  3.25254814814874e-14,
      -9.65469674843344e-13,  1.9455868545777347e-13,  2.86879501093067e-11,
      -6.318088340886684e-11, -7.754400208831351e-10,  4.521959811218287e-09,
      1.076499946567091e-08,  -2.1886401049234397e-07, 7.74038306619849e-07,
      4.13902798607301e-06,   -6.916973302501207e-05,  0.0004907758365258086,
      -0.002413163540417608,  0.009074997670705265,    -0.026658668435305753,
      0.05920993999819189,    -0.08424913336651792,    -0.004590054580646478,
      2.3551578691348034};
  constexpr double k = 3.75;
  const Value y = abs(x);
  const Value t = 1.0 - (2 * k) / (y + k);
  const Value positive = chebyshev(t * 2, kSeries) / (y * 2 + 1);
  return x.builder().select(is(Compare::kLt, x, 0), exp(x * x) * 2 - positive, positive);
}

// The inverse of the normal distribution function, after Cephes.
Value ndtri(const Value& x) {
  static const std::vector<double> P0 = {-59.96335010141079, 98.00107541859997, -56.67628574690703,
                                         13.931260938727968, -1.2391658386738125};
  static const std::vector<double> Q0 = {1.0,
                                         1.9544885833814176,
                                         4.676279128988815,
                                         86.36024213908905,
                                         -225.46268785411937,
                                         200.26021238006066,
                                         -82.03722561683334,
                                         15.90562251262117,
                                         -1.1833162112133};
  static const std::vector<double> P1 = {
      4.0554489230596245,  31.525109459989388,   57.16281922464213,
      44.08050738932008,   14.684956192885803,   2.1866330685079025,
      -0.1402560791713545, -0.03504246268278482, -0.0008574567851546854};
  static const std::vector<double> Q1 = {1.0,
                                         15.779988325646675,
                                         45.39076351288792,
                                         41.3172038254672,
                                         15.04253856929075,
                                         2.504649462083094,
                                         -0.14218292285478779,
                                         -0.03808064076915783,
                                         -0.0009332594808954574};
  static const std::vector<double> P2 = {
      3.2377489177694603,     6.915228890689842,      3.9388102529247444,
      1.3330346081580755,     0.20148538954917908,    0.012371663481782003,
      0.00030158155350823543, 2.6580697468673755e-06, 6.239745391849833e-09};
  static const std::vector<double> Q2 = {1.0,
                                         6.02427039364742,
                                         3.6798356385616087,
                                         1.3770209948908132,
                                         0.21623699359449663,
                                         0.013420400608854318,
                                         0.00032801446468212774,
                                         2.8924786474538068e-06,
                                         6.790194080099813e-09};
  Builder& b = x.builder();
  constexpr double kExpMinus2 = 0.13533528323661269189;
  const Value upper = is(Compare::kGt, x, 1 - kExpMinus2);
  const Value y = b.select(upper, 1.0 - x, x);

  const Value centered = y - 0.5;
  const Value square = centered * centered;
  const Value middle =
      (centered + centered * (square * polynomial(square, P0) / polynomial(square, Q0))) *
      std::sqrt(2 * kPi);

  const Value r = sqrt(log(y) * -2);
  const Value z = 1.0 / r;
  const Value near = z * polynomial(z, P1) / polynomial(z, Q1);
  const Value far = z * polynomial(z, P2) / polynomial(z, Q2);
  Value tail = r - log(r) / r - b.select(is(Compare::kLt, r, 8), near, far);
  tail = b.select(upper, tail, -tail);

  Value result = b.select(is(Compare::kGt, y, kExpMinus2), middle, tail);
  result = choose(is(Compare::kEq, x, 0), -kInf, result);
  result = choose(is(Compare::kEq, x, 1), kInf, result);
  return choose(b.or_(is(Compare::kLt, x, 0), is(Compare::kGt, x, 1)), kNan, result);
}

Value log_ndtr(const Value& x) {
  const Value t = x * (1 / std::numbers::sqrt2);
  const Value tail = log(erfcx(-t) * 0.5) - t * t;
  return x.builder().select(is(Compare::kLt, x, -1), tail, log1p(erfc(t) * -0.5));
}

Value entr(const Value& x) {
  Value result = choose(is(Compare::kEq, x, 0), 0, -x * log(x));
  result = choose(is(Compare::kLt, x, 0), -kInf, result);
  return x.builder().select(isnan(x), x, result);
}

Value lgamma(const Value& x) { return x.builder().lgamma(x); }

Value digamma(const Value& x) {
  Builder& b = x.builder();
  const Value at_zero = copysign(b.like(x, kInf), -x);
  return b.select(is(Compare::kEq, x, 0), at_zero, b.digamma(x));
}

namespace {

// The second derivative of lgamma: recurrence up to x > 6, then the asymptotic series.
Value trigamma(const Value& x) {
  Builder& b = x.builder();
  const Value reflect = is(Compare::kLt, x, 0.5);
  const Value sine = sin(x * kPi);
  Value y = b.select(reflect, 1.0 - x, x);
  Value sum = b.select(reflect, (-kPi * kPi) / (sine * sine), zeros_like(x));
  for (int i = 0; i < 6; ++i) {
    sum = sum + 1.0 / (y * y);
    y = y + 1;
  }
  const Value ixx = 1.0 / (y * y);
  const Value series = 1.0 + 0.5 / y + ixx * (1.0 / 6 - ixx * (1.0 / 30 - ixx * (1.0 / 42)));
  sum = sum + series / y;
  return b.select(reflect, -sum, sum);
}

}  // namespace

Value polygamma(int64_t n, const Value& x) {
  if (n == 0) {
    return digamma(x);
  }
  if (n == 1) {
    return trigamma(x);
  }
  const double factorial = std::tgamma(static_cast<double>(n) + 1);
  const Value order = x.builder().like(x, n + 1);
  return zeta(order, x) * (n % 2 == 1 ? factorial : -factorial);
}

// Hurwitz: sum over k of (q + k)^-x. Terms one by one up to q + k > 9, which takes more of them for
// negative q, then the Euler-Maclaurin formula for the rest.
Value zeta(const Value& x, const Value& q) {
  static const std::vector<double> kBernoulli = {// (2k)! / B2k
                                                 12.0,
                                                 -720.0,
                                                 30240.0,
                                                 -1209600.0,
                                                 47900160.0,
                                                 -1.8924375803183791606e9,
                                                 7.47242496e10,
                                                 -2.950130727918164224e12,
                                                 1.1646782814350067249e14,
                                                 -4.5979787224074726105e15,
                                                 1.8152105401943546773e17,
                                                 -7.1661652561756670113e18};
  Builder& b = x.builder();
  const double epsilon = x.dtype() == DType::kF64 ? 0x1p-53 : 0x1p-24;
  const auto power = [&](const Value& base) { return b.power(base, -x); };
  // 0: k, 1: base, 2: its term, 3: sum, 4: the terms have become negligible
  const auto open = [&](const Values& state) {
    const Value first = is(Compare::kLt, b.broadcast_to(state[0], x.dims()), 9);
    return b.and_(b.or_(first, is(Compare::kLe, state[1], 9)), b.not_(state[4]));
  };
  const auto any_open = [&](const Values& state) -> Values {
    return {b.reduce(open(state), b.scalar(0, DType::kBool), range(x.rank()), Reduction::kOr)};
  };
  const auto next = [&](const Values& state) -> Values {
    const Value here = open(state);
    const Value base = state[1] + 1, term = power(base), sum = state[3] + term;
    const Value negligible = b.lt(abs(term), sum * epsilon);
    return {state[0] + 1, b.select(here, base, state[1]), b.select(here, term, state[2]),
            b.select(here, sum, state[3]), b.or_(state[4], b.and_(here, negligible))};
  };
  const Value nonpositive = is(Compare::kLe, q, 0);
  const Value pole = b.and_(nonpositive, b.eq(q, floor(q)));  // q = -inf too: never start there
  const Values inits = {b.scalar(0, x.dtype()), q, zeros_like(x), power(q), pole};
  const Values state = b.while_loop(inits, any_open, next);
  const Value w = state[1], term = state[2];
  Value rest = state[3] + term * w / (x - 1) - term * 0.5;
  Value factor = ones_like(x), scale = term, k = zeros_like(x);
  Value done = full(b, 0, DType::kBool, x.dims());
  for (double coefficient : kBernoulli) {
    factor = factor * (x + k);
    scale = scale / w;
    const Value t = factor * scale / coefficient;
    rest = b.select(done, rest, rest + t);
    done = b.or_(done, b.lt(abs(t / rest), b.like(x, epsilon)));
    factor = factor * (x + k + 1);
    scale = scale / w;
    k = k + 2;
  }
  Value result = b.select(state[4], state[3], rest);
  result = choose(b.and_(nonpositive, b.ne(x, floor(x))), kNan, result);
  result = choose(pole, kInf, result);
  result = choose(is(Compare::kLt, x, 1), kNan, result);
  return choose(is(Compare::kEq, x, 1), kInf, result);
}

Value xlog1py(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const Value product = choose(is(Compare::kEq, a, 0), 0, a * log1p(b));
  return builder.select(isnan(b), b, product);
}

}  // namespace torch_tpu::ops::math
