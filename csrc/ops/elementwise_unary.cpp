// Elementwise ops of one tensor: rounding, exponentials, trigonometry, special functions.
// Predicates (isnan ...) are in compare.cpp, activations in activation.cpp.
#include <cmath>
#include <limits>
#include <numbers>

#include "csrc/ops/elementwise.h"
#include "csrc/ops/special.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// In the dtype of the input.
template <math::Unary f>
Values lower_unary(Call& c) {
  return {f(c.tensor("self"))};
}

// Floating functions: half types in f32, integers in the float type of the output.
template <math::Unary f>
Values lower_float_unary(Call& c) {
  const Value x = c.tensor(c.has("self") ? "self" : "x");  // the newer special_ ops say x
  const Value result = f(cast(x, float_dtype(x.dtype(), c.out().dtype)));
  check_castable(result.dtype(), c.out().dtype);
  return {result};
}

Values lower_polygamma(Call& c) {
  const Value x = c.tensor("self");
  return {math::polygamma(c.integer("n"), cast(x, float_dtype(x.dtype(), c.out().dtype)))};
}

// log of the multivariate gamma function: p terms of lgamma.
Values lower_mvlgamma(Call& c) {
  const Value self = c.tensor("self");
  const Value x = cast(self, float_dtype(self.dtype(), c.out().dtype));
  const int64_t p = c.integer("p");
  const double order = static_cast<double>(p);
  Value sum = c.b.like(x, order * (order - 1) / 4 * std::log(std::numbers::pi));
  for (int64_t i = 0; i < p; ++i) {
    sum = sum + math::lgamma(x - 0.5 * static_cast<double>(i));
  }
  return {sum};
}

Values lower_round_decimals(Call& c) {
  const Value x = c.tensor("self");
  const int64_t decimals = c.integer("decimals");
  if (decimals == 0 || !is_float(x.dtype())) {
    return {math::round(x)};
  }
  const double ten = std::pow(10.0, static_cast<double>(std::abs(decimals)));
  return {decimals > 0 ? math::round(x * ten) / ten : math::round(x / ten) * ten};
}

Values lower_logit(Call& c) {
  const Value self = c.tensor("self");
  Value x = cast(self, float_dtype(self.dtype(), c.out().dtype));
  check_castable(x.dtype(), c.out().dtype);
  if (c.has("eps")) {
    Builder& b = c.b;
    const Value eps = c.scalar("eps", x.dtype());
    const Value low = b.broadcast_to(eps, x.dims());
    const Value clamped = nan_minimum(nan_maximum(x, low), 1.0 - low);
    // A negative eps means none.
    x = b.select(operand(b.lt(eps, zeros_like(eps)), DType::kBool, x.dims()), x, clamped);
  }
  return {math::log(x / (1.0 - x))};
}

double largest(DType t) {
  switch (t) {
    case DType::kF16:
      return 65504;
    case DType::kBF16:
      return 0x1.FEp127;
    case DType::kF64:
      return std::numeric_limits<double>::max();
    default:
      return std::numeric_limits<float>::max();
  }
}

Values lower_nan_to_num(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const DType t = real_of(self.dtype());
  if (!is_float(t)) {
    return {self};
  }
  const auto replacement = [&](const char* name, double otherwise) {
    const Value value = c.has(name) ? c.scalar(name, t) : b.scalar(otherwise, t);
    return b.broadcast_to(value, self.dims());
  };
  const Value nan = replacement("nan", 0);
  const Value posinf = replacement("posinf", largest(t));
  const Value neginf = replacement("neginf", -largest(t));
  const auto replace = [&](const Value& x) {
    const Value finite =
        b.select(math::isposinf(x), posinf, b.select(math::isneginf(x), neginf, x));
    return b.select(math::isnan(x), nan, finite);
  };
  if (is_complex(self.dtype())) {
    return {b.complex(replace(b.real(self)), replace(b.imag(self)))};
  }
  return {replace(self)};
}

// mantissa * 2^exponent with 0.5 <= |mantissa| < 1, taken from the bits.
Values lower_frexp(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const bool wide = self.dtype() == DType::kF64;
  const DType t = wide ? DType::kF64 : DType::kF32;
  const DType bits_type = wide ? DType::kS64 : DType::kS32;
  const int mantissa_bits = wide ? 52 : 23;
  const int64_t exponent_mask = wide ? 0x7FF : 0xFF;
  const int64_t bias = wide ? 1022 : 126;
  const Value x = b.convert(self, t);
  // Subnormals have no exponent of their own: scale them up first.
  const Value subnormal = b.lt(b.abs(x), b.like(x, wide ? 0x1p-1022 : 0x1p-126));
  const int scale = mantissa_bits + 2;
  const Value scaled = b.select(subnormal, x * std::ldexp(1.0, scale), x);
  const Type bits(bits_type, x.dims());
  const Value word = b.bitcast_convert(scaled, bits);
  Value exponent = b.and_(b.shift_right_logical(word, b.splat_int(mantissa_bits, bits)),
                          b.splat_int(exponent_mask, bits));
  exponent = exponent - bias;
  exponent = b.select(subnormal, exponent - scale, exponent);
  const Value rest = b.and_(word, b.splat_int(~(exponent_mask << mantissa_bits), bits));
  const Value half = b.or_(rest, b.splat_int(bias << mantissa_bits, bits));
  const Value keep = b.or_(b.eq(x, zeros_like(x)), b.not_(b.is_finite(x)));
  return {b.select(keep, x, b.bitcast_convert(half, x.type())),
          b.select(keep, zeros_like(exponent), exponent)};
}

Values lower_complex(Call& c) {
  const DType part = stablehlo::real_of(c.out().dtype);  // of two float16, complex64 is made
  return {c.b.complex(operand(c.tensor("real"), part, c.out().dims),
                      operand(c.tensor("imag"), part, c.out().dims))};
}

Values lower_polar(Call& c) {
  const Value abs = c.b.broadcast_to(c.tensor("abs"), c.out().dims);
  const Value angle = c.b.broadcast_to(c.tensor("angle"), c.out().dims);
  return {c.b.complex(abs * math::cos(angle), abs * math::sin(angle))};
}

}  // namespace

void add_unary(Entries& t) {
  const std::pair<std::string_view, Lowering> same_dtype[] = {
      {"abs", lower_unary<math::abs>},
      {"neg", lower_unary<math::neg>},
      {"sign", lower_unary<math::sign>},
      {"sgn", lower_unary<math::sgn>},
      {"ceil", lower_unary<math::ceil>},
      {"floor", lower_unary<math::floor>},
      {"trunc", lower_unary<math::trunc>},
      {"round", lower_unary<math::round>},
      {"round.decimals", lower_round_decimals},
      {"frac", lower_unary<math::frac>},
      {"bitwise_not", lower_unary<math::bitwise_not>},
      {"_conj_physical", lower_unary<math::conj_physical>},
      {"conj_physical_", lower_unary<math::conj_physical>},
      {"conj_physical.out", lower_unary<math::conj_physical>},
      {"nan_to_num", lower_nan_to_num},
      {"frexp.Tensor", lower_frexp},
      {"complex", lower_complex},
      {"polar", lower_polar},
  };
  const std::pair<std::string_view, Lowering> floating[] = {
      {"reciprocal", lower_float_unary<math::reciprocal>},
      {"sqrt", lower_float_unary<math::sqrt>},
      {"rsqrt", lower_float_unary<math::rsqrt>},
      {"exp", lower_float_unary<math::exp>},
      {"exp2", lower_float_unary<math::exp2>},
      {"expm1", lower_float_unary<math::expm1>},
      {"log", lower_float_unary<math::log>},
      {"log2", lower_float_unary<math::log2>},
      {"log10", lower_float_unary<math::log10>},
      {"log1p", lower_float_unary<math::log1p>},
      {"sin", lower_float_unary<math::sin>},
      {"cos", lower_float_unary<math::cos>},
      {"tan", lower_float_unary<math::tan>},
      {"asin", lower_float_unary<math::asin>},
      {"acos", lower_float_unary<math::acos>},
      {"atan", lower_float_unary<math::atan>},
      {"sinh", lower_float_unary<math::sinh>},
      {"cosh", lower_float_unary<math::cosh>},
      {"tanh", lower_float_unary<math::tanh>},
      {"asinh", lower_float_unary<math::asinh>},
      {"acosh", lower_float_unary<math::acosh>},
      {"atanh", lower_float_unary<math::atanh>},
      {"sigmoid", lower_float_unary<math::sigmoid>},
      {"sinc", lower_float_unary<math::sinc>},
      {"angle", lower_float_unary<math::angle>},
      {"logit", lower_logit},
      {"erf", lower_float_unary<math::erf>},
      {"erfc", lower_float_unary<math::erfc>},
      {"erfinv", lower_float_unary<math::erfinv>},
      {"lgamma", lower_float_unary<math::lgamma>},
      {"digamma", lower_float_unary<math::digamma>},
      {"polygamma", lower_polygamma},
      {"mvlgamma", lower_mvlgamma},
      {"i0", lower_float_unary<math::i0>},
      {"special_i0e", lower_float_unary<math::i0e>},
      {"special_i1", lower_float_unary<math::i1>},
      {"special_i1e", lower_float_unary<math::i1e>},
      {"special_entr", lower_float_unary<math::entr>},
      {"special_erfcx", lower_float_unary<math::erfcx>},
      {"special_ndtri", lower_float_unary<math::ndtri>},
      {"special_log_ndtr", lower_float_unary<math::log_ndtr>},
      {"special_bessel_j0", lower_float_unary<math::bessel_j0>},
      {"special_bessel_j1", lower_float_unary<math::bessel_j1>},
      {"special_bessel_y0", lower_float_unary<math::bessel_y0>},
      {"special_bessel_y1", lower_float_unary<math::bessel_y1>},
      {"special_modified_bessel_i0", lower_float_unary<math::i0>},
      {"special_modified_bessel_i1", lower_float_unary<math::i1>},
      {"special_modified_bessel_k0", lower_float_unary<math::modified_bessel_k0>},
      {"special_modified_bessel_k1", lower_float_unary<math::modified_bessel_k1>},
      {"special_scaled_modified_bessel_k0", lower_float_unary<math::scaled_modified_bessel_k0>},
      {"special_scaled_modified_bessel_k1", lower_float_unary<math::scaled_modified_bessel_k1>},
      {"special_spherical_bessel_j0", lower_float_unary<math::spherical_bessel_j0>},
      {"special_airy_ai", lower_float_unary<math::airy_ai>},
  };
  for (const auto& [name, lower] : same_dtype) {
    t.push_back({.name = name, .lower = lower});
  }
  for (const auto& [name, lower] : floating) {
    t.push_back({.name = name, .lower = lower});
  }
}

}  // namespace torch_tpu::ops
