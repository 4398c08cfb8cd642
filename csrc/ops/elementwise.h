// The formulas of elementwise ops over values, each written once: the single-op tables, foreach
// and the optimizers all call these. Operands have one shape and one dtype, the one to compute in;
// broadcasting, promotion and the choice of that dtype belong to the lowerings.
#pragma once

#include "csrc/ops/helpers.h"

namespace torch_tpu::ops {

// Converts, then broadcasts (in this order: the conversion then runs on the small operand).
Value operand(const Value& x, DType dtype, const Dims& dims);
// Refuses what cannot be written, e.g. a float result into an integer tensor: Meta kernels of some
// in-place forms let it pass, and the CPU then raises its own error.
void check_castable(DType result, DType out);
// The dtype a floating function computes in: half types in f32, integers in the output's type.
DType float_dtype(DType in, DType out);

namespace math {

using Unary = Value (*)(const Value&);
using Binary = Value (*)(const Value&, const Value&);

// Compares with a constant.
Value is(Compare direction, const Value& x, const Number& value);
// The constant where `pred`, `otherwise` elsewhere.
Value choose(const Value& pred, const Number& constant, const Value& otherwise);

// --- one operand, any dtype -------------------------------------------------------------------
Value abs(const Value& x);  // complex -> real
Value neg(const Value& x);
Value sign(const Value& x);  // NaN -> 0, as CPU's kernel
Value sgn(const Value& x);   // complex: x / |x|
Value ceil(const Value& x);
Value floor(const Value& x);
Value trunc(const Value& x);
Value round(const Value& x);  // half to even
Value frac(const Value& x);
Value bitwise_not(const Value& x);
Value conj_physical(const Value& x);
// Predicates: bool results.
Value isnan(const Value& x);
Value isinf(const Value& x);
Value isposinf(const Value& x);
Value isneginf(const Value& x);
Value isfinite(const Value& x);
Value signbit(const Value& x);
Value logical_not(const Value& x);

// --- one operand, floating or complex ---------------------------------------------------------
Value reciprocal(const Value& x);
Value sqrt(const Value& x);
Value rsqrt(const Value& x);
Value exp(const Value& x);
Value exp2(const Value& x);
Value expm1(const Value& x);
Value log(const Value& x);
Value log2(const Value& x);
Value log10(const Value& x);
Value log1p(const Value& x);
Value sin(const Value& x);
Value cos(const Value& x);
Value tan(const Value& x);
Value asin(const Value& x);
Value acos(const Value& x);
Value atan(const Value& x);
Value sinh(const Value& x);
Value cosh(const Value& x);
Value tanh(const Value& x);
Value asinh(const Value& x);
Value acosh(const Value& x);
Value atanh(const Value& x);
Value sigmoid(const Value& x);
Value sinc(const Value& x);
Value angle(const Value& x);  // complex -> real

// --- two operands -----------------------------------------------------------------------------
Value add(const Value& a, const Value& b);
Value sub(const Value& a, const Value& b);
Value mul(const Value& a, const Value& b);
Value div(const Value& a, const Value& b);        // floating or complex
Value div_floor(const Value& a, const Value& b);  // by integer zero: unspecified value
Value fmod(const Value& a, const Value& b);       // sign of the dividend
Value remainder(const Value& a, const Value& b);  // sign of the divisor
Value pow(const Value& a, const Value& b);
Value maximum(const Value& a, const Value& b);  // NaN propagates
Value minimum(const Value& a, const Value& b);
Value fmax(const Value& a, const Value& b);  // NaN loses
Value fmin(const Value& a, const Value& b);
Value atan2(const Value& a, const Value& b);
Value hypot(const Value& a, const Value& b);
Value copysign(const Value& a, const Value& b);
Value nextafter(const Value& a, const Value& b);
Value ldexp(const Value& a, const Value& b);
Value heaviside(const Value& a, const Value& b);
Value xlogy(const Value& a, const Value& b);
Value logaddexp(const Value& a, const Value& b);
Value logaddexp2(const Value& a, const Value& b);
Value gcd(const Value& a, const Value& b);
Value lcm(const Value& a, const Value& b);
Value bitwise_and(const Value& a, const Value& b);
Value bitwise_or(const Value& a, const Value& b);
Value bitwise_xor(const Value& a, const Value& b);
Value bitwise_left_shift(const Value& a, const Value& b);
Value bitwise_right_shift(const Value& a, const Value& b);

// The exponents with cheaper and exacter forms; undefined Value: none for this one.
Value pow_known(const Value& x, const Number& exponent);
inline std::vector<Number> known_exponents() { return {0, 1, 2, 3, -1, -2, 0.5, -0.5}; }

// --- three operands ---------------------------------------------------------------------------
Value lerp(const Value& start, const Value& end, const Value& weight);
// `value` undefined means 1.
Value addcmul(const Value& x, const Value& tensor1, const Value& tensor2, const Value& value);
Value addcdiv(const Value& x, const Value& tensor1, const Value& tensor2, const Value& value);

}  // namespace math
}  // namespace torch_tpu::ops
