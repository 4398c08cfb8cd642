// The formulas of elementwise.h.
#include "csrc/ops/elementwise.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <string>

namespace torch_tpu::ops {

Value operand(const Value& x, DType dtype, const Dims& dims) {
  return x.builder().broadcast_to(cast(x, dtype), dims);
}

void check_castable(DType result, DType out) {
  const auto rank = [](DType t) {
    return is_complex(t) ? 3 : is_float(t) ? 2 : t == DType::kBool ? 0 : 1;
  };
  if (rank(result) > rank(out)) {
    throw std::invalid_argument("[elementwise] expected a result that fits " +
                                std::string(dtype_name(out)) + ", got " +
                                std::string(dtype_name(result)));
  }
}

DType float_dtype(DType in, DType out) {
  if (is_float(in) || is_complex(in)) {
    return opmath(in);
  }
  return is_float(out) ? opmath(out) : DType::kF32;
}

namespace math {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kPi = std::numbers::pi;

bool is_floating(const Value& x) { return is_float(x.dtype()) || is_complex(x.dtype()); }

Value false_like(const Value& x) { return full(x.builder(), 0, DType::kBool, x.dims()); }

// a and b have different signs (both not NaN).
Value signs_differ(const Value& a, const Value& b) {
  return a.builder().ne(is(Compare::kLt, a, 0), is(Compare::kLt, b, 0));
}

}  // namespace

Value is(Compare direction, const Value& x, const Number& value) {
  return x.builder().compare(direction, x, x.builder().like(x, value));
}

Value choose(const Value& pred, const Number& constant, const Value& otherwise) {
  Builder& b = otherwise.builder();
  return b.select(pred, b.like(otherwise, constant), otherwise);
}

Value abs(const Value& x) { return is_unsigned(x.dtype()) ? x : x.builder().abs(x); }
Value neg(const Value& x) { return x.builder().negate(x); }

Value sign(const Value& x) {
  Builder& b = x.builder();
  if (x.dtype() == DType::kBool) {
    return x;
  }
  const Value positive = cast(is(Compare::kGt, x, 0), x.dtype());
  if (is_unsigned(x.dtype())) {
    return positive;
  }
  return b.select(is(Compare::kLt, x, 0), b.like(x, -1), positive);
}

Value sgn(const Value& x) { return is_complex(x.dtype()) ? x.builder().sign(x) : sign(x); }
Value ceil(const Value& x) { return is_floating(x) ? x.builder().ceil(x) : x; }
Value floor(const Value& x) { return is_floating(x) ? x.builder().floor(x) : x; }
Value round(const Value& x) { return is_floating(x) ? x.builder().round_nearest_even(x) : x; }

Value trunc(const Value& x) {
  return is_floating(x) ? x.builder().select(is(Compare::kLt, x, 0), ceil(x), floor(x)) : x;
}

Value frac(const Value& x) { return x - trunc(x); }
Value bitwise_not(const Value& x) { return x.builder().not_(x); }
Value conj_physical(const Value& x) { return is_complex(x.dtype()) ? x.builder().conj(x) : x; }

Value isnan(const Value& x) { return is_floating(x) ? x.builder().ne(x, x) : false_like(x); }

Value isinf(const Value& x) {
  Builder& b = x.builder();
  if (is_complex(x.dtype())) {
    return b.or_(isinf(b.real(x)), isinf(b.imag(x)));
  }
  return is_floating(x) ? is(Compare::kEq, b.abs(x), kInf) : false_like(x);
}

Value isposinf(const Value& x) {
  return is_floating(x) ? is(Compare::kEq, x, kInf) : false_like(x);
}

Value isneginf(const Value& x) {
  return is_floating(x) ? is(Compare::kEq, x, -kInf) : false_like(x);
}

Value isfinite(const Value& x) {
  Builder& b = x.builder();
  if (is_complex(x.dtype())) {
    return b.and_(b.is_finite(b.real(x)), b.is_finite(b.imag(x)));
  }
  return is_floating(x) ? b.is_finite(x) : b.not_(false_like(x));
}

Value signbit(const Value& x) {
  Builder& b = x.builder();
  if (!is_floating(x)) {
    return is_unsigned(x.dtype()) ? false_like(x) : is(Compare::kLt, x, 0);
  }
  if (x.dtype() == DType::kF64) {
    // No bitcast: f64 has no bits of its own on a TPU. The sign of a NaN is lost.
    const Value negative_zero = b.and_(is(Compare::kEq, x, 0), is(Compare::kLt, reciprocal(x), 0));
    return b.or_(is(Compare::kLt, x, 0), negative_zero);
  }
  // Widening keeps the sign, of NaN and zero too.
  const Value wide = b.convert(x, DType::kF32);
  return is(Compare::kLt, b.bitcast_convert(wide, Type(DType::kS32, x.dims())), 0);
}

Value logical_not(const Value& x) { return is(Compare::kEq, x, 0); }

Value reciprocal(const Value& x) { return 1.0 / x; }
Value sqrt(const Value& x) { return x.builder().sqrt(x); }
Value rsqrt(const Value& x) { return x.builder().rsqrt(x); }
Value exp(const Value& x) { return x.builder().exponential(x); }
Value exp2(const Value& x) { return x.builder().power(x.builder().like(x, 2), x); }
Value expm1(const Value& x) { return x.builder().exponential_minus_one(x); }
// XLA's logarithm of a complex number is not infinite where one part is and the other is NaN.
Value log(const Value& x) {
  Builder& b = x.builder();
  const Value natural = b.log(x);
  if (!is_complex(x.dtype())) return natural;
  const Value re = b.real(x), im = b.imag(x);
  const Value infinity = b.like(re, std::numeric_limits<double>::infinity());
  const Value infinite = b.or_(b.eq(b.abs(re), infinity), b.eq(b.abs(im), infinity));
  const Value nan = b.or_(b.ne(re, re), b.ne(im, im));
  const Value magnitude = b.select(nan, b.add(re, im), b.real(natural));
  return b.complex(b.select(infinite, infinity, magnitude), b.imag(natural));
}

namespace {

// Part by part: the product of complex numbers makes NaN of an infinite part times 0.
Value log_of_base(const Value& x, double base_log) {
  const Value natural = log(x);
  if (!is_complex(x.dtype())) return natural * (1 / base_log);
  Builder& b = x.builder();
  return b.complex(b.real(natural) * (1 / base_log), b.imag(natural) * (1 / base_log));
}

}  // namespace

Value log2(const Value& x) { return log_of_base(x, std::numbers::ln2); }
Value log10(const Value& x) { return log_of_base(x, std::numbers::ln10); }
Value log1p(const Value& x) { return x.builder().log_plus_one(x); }
Value asin(const Value& x) { return x.builder().asin(x); }
Value acos(const Value& x) { return x.builder().acos(x); }
Value atan(const Value& x) { return x.builder().atan(x); }
Value sinh(const Value& x) { return x.builder().sinh(x); }
Value cosh(const Value& x) { return x.builder().cosh(x); }
Value tanh(const Value& x) { return x.builder().tanh(x); }
Value asinh(const Value& x) { return x.builder().asinh(x); }
Value acosh(const Value& x) { return x.builder().acosh(x); }
Value atanh(const Value& x) { return x.builder().atanh(x); }
Value sigmoid(const Value& x) { return x.builder().logistic(x); }

Value sinc(const Value& x) {
  const Value scaled = x * kPi;
  return x.builder().select(is(Compare::kEq, x, 0), ones_like(x), sin(scaled) / scaled);
}

Value angle(const Value& x) {
  Builder& b = x.builder();
  if (is_complex(x.dtype())) {
    return b.atan2(b.imag(x), b.real(x));
  }
  const Value result = b.select(is(Compare::kLt, x, 0), b.like(x, kPi), zeros_like(x));
  return b.select(isnan(x), x, result);
}

Value add(const Value& a, const Value& b) { return a.builder().add(a, b); }
Value sub(const Value& a, const Value& b) { return a.builder().subtract(a, b); }
Value mul(const Value& a, const Value& b) { return a.builder().multiply(a, b); }
Value div(const Value& a, const Value& b) { return a.builder().divide(a, b); }

Value div_floor(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  if (!is_floating(a)) {
    const Value quotient = div(a, b);
    if (is_unsigned(a.dtype())) {
      return quotient;
    }
    const Value inexact = is(Compare::kNe, fmod(a, b), 0);
    return builder.select(builder.and_(inexact, signs_differ(a, b)), quotient - 1, quotient);
  }
  // As CPU and Python: from the exact remainder, since floor(a / b) may round up past it.
  const Value mod = fmod(a, b);
  Value quotient = (a - mod) / b;
  const Value adjust = builder.and_(is(Compare::kNe, mod, 0), signs_differ(b, mod));
  quotient = builder.select(adjust, quotient - 1, quotient);
  Value floored = floor(quotient);
  floored = builder.select(is(Compare::kGt, quotient - floored, 0.5), floored + 1, floored);
  const Value ratio = a / b;
  floored = builder.select(is(Compare::kEq, quotient, 0), ratio * 0, floored);  // signed zero
  return builder.select(is(Compare::kEq, b, 0), ratio, floored);
}

Value fmod(const Value& a, const Value& b) { return a.builder().remainder(a, b); }

Value remainder(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const Value mod = fmod(a, b);
  if (is_unsigned(a.dtype())) {
    return mod;
  }
  const Value adjust = builder.and_(is(Compare::kNe, mod, 0), signs_differ(b, mod));
  return builder.select(adjust, mod + b, mod);
}

Value pow(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  if (is_floating(a) || is_unsigned(a.dtype())) {
    return builder.power(a, b);
  }
  // A negative exponent leaves 1, -1 or nothing of an integer.
  const Value negative = is(Compare::kLt, b, 0);
  const Value odd = is(Compare::kNe, builder.and_(b, ones_like(b)), 0);
  const Value minus_one = builder.select(odd, builder.like(a, -1), ones_like(a));
  const Value inverse = builder.select(
      is(Compare::kEq, a, 1), a, builder.select(is(Compare::kEq, a, -1), minus_one, zeros_like(a)));
  const Value exponent = builder.select(negative, zeros_like(b), b);
  return builder.select(negative, inverse, builder.power(a, exponent));
}

Value pow_known(const Value& x, const Number& exponent) {
  if (exponent == 0) {
    return ones_like(x);
  } else if (exponent == 1) {
    return x;
  } else if (exponent == 2) {
    return mul(x, x);
  } else if (exponent == 3) {
    return mul(mul(x, x), x);
  } else if (!is_floating(x)) {
    return {};
  } else if (exponent == -1) {
    return reciprocal(x);
  } else if (exponent == -2) {
    return reciprocal(x * x);
  } else if (exponent == 0.5) {
    return sqrt(x);
  } else if (exponent == -0.5) {
    return rsqrt(x);
  }
  return {};
}

Value maximum(const Value& a, const Value& b) { return nan_maximum(a, b); }
Value minimum(const Value& a, const Value& b) { return nan_minimum(a, b); }

Value fmax(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const Value result = maximum(a, b);
  return is_floating(a) ? builder.select(isnan(a), b, builder.select(isnan(b), a, result)) : result;
}

Value fmin(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const Value result = minimum(a, b);
  return is_floating(a) ? builder.select(isnan(a), b, builder.select(isnan(b), a, result)) : result;
}

Value atan2(const Value& a, const Value& b) { return a.builder().atan2(a, b); }

Value hypot(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const Value x = abs(a), y = abs(b);
  const Value large = maximum(x, y), small = minimum(x, y);
  const Value ratio = small / large;  // keeps the squares from overflowing
  const Value safe =
      builder.select(is(Compare::kEq, large, 0), zeros_like(a), large * sqrt(ratio * ratio + 1));
  return builder.select(builder.or_(isinf(a), isinf(b)), builder.like(a, kInf), safe);
}

Value copysign(const Value& a, const Value& b) {
  const Value magnitude = abs(a);
  return a.builder().select(signbit(b), -magnitude, magnitude);
}

Value nextafter(const Value& a, const Value& b) { return a.builder().next_after(a, b); }
Value ldexp(const Value& a, const Value& b) { return a * exp2(b); }

Value heaviside(const Value& a, const Value& b) {
  const Value step = cast(is(Compare::kGt, a, 0), a.dtype());
  return a.builder().select(is(Compare::kEq, a, 0), b, step);
}

Value xlogy(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const Value product = builder.select(is(Compare::kEq, a, 0), zeros_like(a), a * log(b));
  return builder.select(isnan(b), b, product);
}

Value logaddexp(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  if (is_complex(a.dtype())) {
    const Value a_larger = builder.ge(builder.real(a), builder.real(b));
    const Value large = builder.select(a_larger, a, b), small = builder.select(a_larger, b, a);
    const Value equal_infinities =
        builder.and_(builder.eq(builder.real(a), builder.real(b)), isinf(builder.real(a)));
    const Value at_infinity =
        builder.select(is(Compare::kLt, builder.real(a), 0), large, log(exp(large) + exp(small)));
    return builder.select(equal_infinities, at_infinity, large + log1p(exp(small - large)));
  }
  const Value sum = maximum(a, b) + log1p(exp(-abs(a - b)));
  return builder.select(builder.and_(isinf(a), builder.eq(a, b)), a, sum);
}

Value logaddexp2(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const Value sum = maximum(a, b) + log1p(exp2(-abs(a - b))) * (1 / std::numbers::ln2);
  return builder.select(builder.and_(isinf(a), builder.eq(a, b)), a, sum);
}

Value gcd(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  // Euclid on all elements at once, until every one has reached zero.
  const auto unfinished = [&](const Values& state) -> Values {
    const Value open = is(Compare::kNe, state[1], 0);
    return {
        builder.reduce(open, builder.scalar(0, DType::kBool), range(open.rank()), Reduction::kOr)};
  };
  const auto step = [&](const Values& state) -> Values {
    const Value done = is(Compare::kEq, state[1], 0);
    const Value divisor = builder.select(done, ones_like(state[1]), state[1]);
    return {builder.select(done, state[0], state[1]),
            builder.select(done, state[1], fmod(state[0], divisor))};
  };
  return builder.while_loop({abs(a), abs(b)}, unfinished, step)[0];
}

Value lcm(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const Value divisor = gcd(a, b);
  const Value none = is(Compare::kEq, divisor, 0);
  const Value quotient = div(a, builder.select(none, ones_like(divisor), divisor));
  return builder.select(none, zeros_like(a), abs(mul(quotient, b)));
}

Value bitwise_and(const Value& a, const Value& b) { return a.builder().and_(a, b); }
Value bitwise_or(const Value& a, const Value& b) { return a.builder().or_(a, b); }
Value bitwise_xor(const Value& a, const Value& b) { return a.builder().xor_(a, b); }

namespace {

// Amounts outside [0, bits) act as if every bit had been shifted out.
Value shift_amount_valid(const Value& amount) {
  Builder& b = amount.builder();
  const int64_t bits = 8 * dtype_bytes(amount.dtype());
  const Value small = is(Compare::kLt, amount, bits);
  return is_unsigned(amount.dtype()) ? small : b.and_(small, is(Compare::kGe, amount, 0));
}

}  // namespace

Value bitwise_left_shift(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  return builder.select(shift_amount_valid(b), builder.shift_left(a, b), zeros_like(a));
}

Value bitwise_right_shift(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const Value valid = shift_amount_valid(b);
  if (is_unsigned(a.dtype())) {
    return builder.select(valid, builder.shift_right_logical(a, b), zeros_like(a));
  }
  const int64_t last = 8 * dtype_bytes(a.dtype()) - 1;
  return builder.shift_right_arithmetic(a, builder.select(valid, b, builder.like(b, last)));
}

Value lerp(const Value& start, const Value& end, const Value& weight) {
  Builder& b = start.builder();
  // Two forms, so that the result is exact at both ends.
  const Value magnitude = abs(weight);
  const Value small = is(Compare::kLt, magnitude, 0.5);
  const Value distance = end - start;
  return b.select(small, start + weight * distance, end - distance * (1.0 - weight));
}

Value addcmul(const Value& x, const Value& tensor1, const Value& tensor2, const Value& value) {
  return x + mul(value ? mul(value, tensor1) : tensor1, tensor2);
}

Value addcdiv(const Value& x, const Value& tensor1, const Value& tensor2, const Value& value) {
  return x + div(value ? mul(value, tensor1) : tensor1, tensor2);
}

}  // namespace math
}  // namespace torch_tpu::ops
