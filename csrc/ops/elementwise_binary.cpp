// Elementwise arithmetic of two and three operands: add ... pow, addcmul, lerp, and the special
// functions of two variables. Comparisons, bitwise ops, maximum and clamp are in compare.cpp.
#include <stdexcept>

#include "csrc/ops/elementwise.h"
#include "csrc/ops/special.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

std::string_view first_name(const Call& c) { return c.has("self") ? "self" : "x"; }

std::string_view second_name(const Call& c) {
  for (std::string_view name : {"other", "exponent", "values"}) {
    if (c.has(name)) {
      return name;
    }
  }
  return "n";  // the orthogonal polynomials
}

// Without the opmath: the dtype of the result as PyTorch sees it.
DType promoted(const Call& c) { return c.common_dtype({first_name(c), second_name(c)}); }

template <math::Binary f>
Values lower_in(Call& c, DType t) {
  check_castable(t, c.out().dtype);
  const Value a = operand(c.tensor(first_name(c)), t, c.out().dims);
  const Value b = operand(c.tensor(second_name(c)), t, c.out().dims);
  return {f(a, b)};
}

// In the promoted dtype, half types in f32.
template <math::Binary f>
Values lower_binary(Call& c) {
  return lower_in<f>(c, opmath(promoted(c)));
}

// In exactly the promoted dtype.
template <math::Binary f>
Values lower_exact_binary(Call& c) {
  return lower_in<f>(c, promoted(c));
}

// CPU raises for integers, where XLA has a result. See Entry::divides.
void check_divisor(Call& c) {
  const DType t = promoted(c);
  if (is_float(t) || is_complex(t) || c.is_number(second_name(c))) return;
  if (c.out().numel() == 0) return;
  const Value by = cast(c.tensor(second_name(c)), t);
  const Value zero = c.b.eq(by, zeros_like(by));
  c.check_range(c.b.convert(zero, DType::kS64), 0, 1, "ZeroDivisionError");
}

template <math::Binary f>
Values lower_division(Call& c) {
  check_divisor(c);
  return lower_binary<f>(c);
}

// Integers become the float type of the output.
template <math::Binary f>
Values lower_float_binary(Call& c) {
  return lower_in<f>(c, float_dtype(promoted(c), c.out().dtype));
}

// The second operand times alpha, which is nearly always 1.
Value scaled(Call& c, const Value& x) {
  if (c.known("alpha") == 1) {
    return x;
  }
  return math::mul(x, c.b.broadcast_to(c.scalar("alpha", x.dtype()), x.dims()));
}

Values lower_add(Call& c) {
  const DType t = opmath(promoted(c));
  check_castable(t, c.out().dtype);
  const Value b = scaled(c, operand(c.tensor("other"), t, c.out().dims));
  return {math::add(operand(c.tensor("self"), t, c.out().dims), b)};
}

Values lower_sub(Call& c) {
  const DType t = opmath(promoted(c));
  check_castable(t, c.out().dtype);
  const Value b = scaled(c, operand(c.tensor("other"), t, c.out().dims));
  return {math::sub(operand(c.tensor("self"), t, c.out().dims), b)};
}

Values lower_rsub(Call& c) {
  const DType t = opmath(promoted(c));
  check_castable(t, c.out().dtype);
  const Value b = scaled(c, operand(c.tensor("self"), t, c.out().dims));
  return {math::sub(operand(c.tensor("other"), t, c.out().dims), b)};
}

// By a bool: a select of our own, as XLA would turn the product into one that makes 0 of inf * 0.
Values lower_mul(Call& c) {
  const DType t = opmath(promoted(c));
  const bool by_bool = is_float(t) && c.dtype("other") == DType::kBool;
  const bool of_bool = is_float(t) && c.dtype("self") == DType::kBool;
  if (!by_bool && !of_bool) {
    return lower_in<math::mul>(c, t);
  }
  check_castable(t, c.out().dtype);
  const Value mask = operand(c.tensor(by_bool ? "other" : "self"), DType::kBool, c.out().dims);
  const Value x = operand(c.tensor(by_bool ? "self" : "other"), t, c.out().dims);
  return {c.b.select(mask, x, x * 0)};
}

Values lower_div_mode(Call& c) {
  const std::string mode = c.string("rounding_mode");
  if (mode == "trunc") {
    // CPU rounds the quotient of half types first, so 17.99 becomes 18 and not 17.
    const Value quotient = lower_division<math::div>(c)[0];
    return {math::trunc(cast(quotient, promoted(c)))};
  }
  return mode == "floor" ? lower_division<math::div_floor>(c) : lower_float_binary<math::div>(c);
}

Values lower_remainder_scalar_tensor(Call& c) {
  check_divisor(c);
  const DType t = opmath(promoted(c));
  const Value a = c.b.broadcast_to(c.scalar("self", t), c.out().dims);
  return {math::remainder(a, cast(c.tensor("other"), t))};
}

Values lower_pow_tensor_scalar(Call& c) {
  const DType t = opmath(promoted(c));
  check_castable(t, c.out().dtype);
  const Value x = cast(c.tensor("self"), t);
  if (const auto exponent = c.known("exponent")) {
    if (const Value result = math::pow_known(x, *exponent)) {
      return {result};
    }
  }
  return {math::pow(x, c.b.broadcast_to(c.scalar("exponent", t), x.dims()))};
}

Values lower_pow_scalar(Call& c) {
  const DType t = opmath(promoted(c));
  const Value exponent = cast(c.tensor("exponent"), t);
  return {math::pow(c.b.broadcast_to(c.scalar("self", t), exponent.dims()), exponent)};
}

// A number for every element. CPU refuses a complex one where it computes in real numbers.
Value number(Call& c, std::string_view name, DType t, const Dims& dims) {
  if (!is_complex(t) && !c.known(name) && is_complex(c.kind_of_scalar(name))) {
    throw std::invalid_argument("[elementwise] expected a real " + std::string(name));
  }
  return c.b.broadcast_to(c.scalar(name, t), dims);
}

using Ternary = Value (*)(const Value&, const Value&, const Value&, const Value&);

template <Ternary f>
Values lower_addc(Call& c) {
  const Dims& dims = c.out().dims;
  const DType t = opmath(c.common_dtype({"self", "tensor1", "tensor2"}));
  Value value;
  if (c.known("value") != 1) {
    value = number(c, "value", t, dims);
  }
  return {f(operand(c.tensor("self"), t, dims), operand(c.tensor("tensor1"), t, dims),
            operand(c.tensor("tensor2"), t, dims), value)};
}

Values lower_lerp_tensor(Call& c) {
  const Dims& dims = c.out().dims;
  const DType t = opmath(c.common_dtype({"self", "end", "weight"}));
  return {math::lerp(operand(c.tensor("self"), t, dims), operand(c.tensor("end"), t, dims),
                     operand(c.tensor("weight"), t, dims))};
}

Values lower_lerp_scalar(Call& c) {
  const Dims& dims = c.out().dims;
  const DType t = opmath(c.common_dtype({"self", "end"}));
  return {math::lerp(operand(c.tensor("self"), t, dims), operand(c.tensor("end"), t, dims),
                     number(c, "weight", t, dims))};
}

}  // namespace

void add_binary(Entries& t) {
  const std::pair<std::string_view, Lowering> entries[] = {
      {"add.Tensor", lower_add},
      {"sub.Tensor", lower_sub},
      {"rsub.Tensor", lower_rsub},
      {"mul.Tensor", lower_mul},
      {"div.Tensor", lower_float_binary<math::div>},
      {"remainder.Scalar_Tensor", lower_remainder_scalar_tensor},
      {"pow.Tensor_Tensor", lower_binary<math::pow>},
      {"pow.Scalar", lower_pow_scalar},
      {"atan2", lower_float_binary<math::atan2>},
      {"hypot", lower_float_binary<math::hypot>},
      {"copysign.Tensor", lower_float_binary<math::copysign>},
      {"nextafter", lower_exact_binary<math::nextafter>},
      {"ldexp.Tensor", lower_float_binary<math::ldexp>},
      {"ldexp_", lower_float_binary<math::ldexp>},
      {"heaviside", lower_exact_binary<math::heaviside>},
      {"gcd", lower_exact_binary<math::gcd>},
      {"lcm", lower_exact_binary<math::lcm>},
      {"xlogy.Tensor", lower_float_binary<math::xlogy>},
      {"special_xlog1py", lower_float_binary<math::xlog1py>},
      {"special_zeta", lower_float_binary<math::zeta>},
      {"logaddexp", lower_float_binary<math::logaddexp>},
      {"logaddexp2", lower_float_binary<math::logaddexp2>},
      {"igamma", lower_float_binary<math::igamma>},
      {"igammac", lower_float_binary<math::igammac>},
      {"addcmul", lower_addc<math::addcmul>},
      {"addcdiv", lower_addc<math::addcdiv>},
      {"lerp.Tensor", lower_lerp_tensor},
      {"lerp.Scalar", lower_lerp_scalar},
      {"special_chebyshev_polynomial_t", lower_float_binary<math::chebyshev_polynomial_t>},
      {"special_chebyshev_polynomial_u", lower_float_binary<math::chebyshev_polynomial_u>},
      {"special_chebyshev_polynomial_v", lower_float_binary<math::chebyshev_polynomial_v>},
      {"special_chebyshev_polynomial_w", lower_float_binary<math::chebyshev_polynomial_w>},
      {"special_shifted_chebyshev_polynomial_t",
       lower_float_binary<math::shifted_chebyshev_polynomial_t>},
      {"special_shifted_chebyshev_polynomial_u",
       lower_float_binary<math::shifted_chebyshev_polynomial_u>},
      {"special_shifted_chebyshev_polynomial_v",
       lower_float_binary<math::shifted_chebyshev_polynomial_v>},
      {"special_shifted_chebyshev_polynomial_w",
       lower_float_binary<math::shifted_chebyshev_polynomial_w>},
      {"special_hermite_polynomial_h", lower_float_binary<math::hermite_polynomial_h>},
      {"special_hermite_polynomial_he", lower_float_binary<math::hermite_polynomial_he>},
      {"special_laguerre_polynomial_l", lower_float_binary<math::laguerre_polynomial_l>},
      {"special_legendre_polynomial_p", lower_float_binary<math::legendre_polynomial_p>},
  };
  for (const auto& [name, lower] : entries) {
    t.push_back({.name = name, .lower = lower, .cpu_scalars = true});
  }
  const std::pair<std::string_view, Lowering> divisions[] = {
      {"div.Tensor_mode", lower_div_mode},
      {"floor_divide", lower_division<math::div_floor>},
      {"floor_divide_.Tensor", lower_division<math::div_floor>},  // not named as the functional is
      {"fmod.Tensor", lower_division<math::fmod>},
      {"remainder.Tensor", lower_division<math::remainder>},
  };
  for (const auto& [name, lower] : divisions) {
    t.push_back({.name = name, .lower = lower, .cpu_scalars = true, .divides = true});
  }
  // The in-place forms of pow have overload names of their own.
  t.push_back({.name = "pow_.Tensor", .lower = lower_binary<math::pow>, .cpu_scalars = true});
  for (std::string_view name : {"pow.Tensor_Scalar", "pow_.Scalar"}) {
    t.push_back(
        {.name = name, .lower = lower_pow_tensor_scalar, .special = math::known_exponents()});
  }
}

}  // namespace torch_tpu::ops
