// Activations and their backward ops. All compute in opmath: half types in f32.
#include <cmath>
#include <limits>
#include <numbers>

#include "csrc/ops/elementwise.h"
#include "csrc/ops/random.h"
#include "csrc/ops/special.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

using math::exp;
using math::expm1;
using math::is;
using math::log1p;
using math::maximum;
using math::minimum;
using math::sigmoid;
using math::tanh;

// A tensor argument in the dtype to compute in, with the shape of the output.
Value in(Call& c, std::string_view name) {
  const Value x = c.tensor(name);
  return operand(x, opmath(x.dtype()), c.out().dims);
}

// A Scalar argument with the type of `x`.
Value number(Call& c, std::string_view name, const Value& x) {
  return c.b.broadcast_to(c.scalar(name, x.dtype()), x.dims());
}

// --- relu and its piecewise linear kin --------------------------------------------------------

Values lower_relu(Call& c) {
  const Value x = c.tensor("self");
  TORCH_CHECK(x.dtype() != DType::kBool, "Boolean inputs not supported for relu");
  return {maximum(x, zeros_like(x))};
}

Values lower_threshold(Call& c) {
  const Value x = in(c, "self");
  return {c.b.select(c.b.le(x, number(c, "threshold", x)), number(c, "value", x), x)};
}

Values lower_threshold_backward(Call& c) {
  const Value x = in(c, "self"), grad = in(c, "grad_output");
  return {c.b.select(c.b.le(x, number(c, "threshold", x)), zeros_like(grad), grad)};
}

Values lower_leaky_relu(Call& c) {
  const Value x = in(c, "self");
  return {c.b.select(is(Compare::kGt, x, 0), x, x * number(c, "negative_slope", x))};
}

Values lower_leaky_relu_backward(Call& c) {
  // The sign of the result is the sign of the input, so self_is_result changes nothing.
  const Value x = in(c, "self"), grad = in(c, "grad_output");
  return {c.b.select(is(Compare::kGt, x, 0), grad, grad * number(c, "negative_slope", grad))};
}

Values lower_prelu(Call& c) {
  const Value x = in(c, "self");
  return {c.b.select(is(Compare::kGt, x, 0), x, in(c, "weight") * x)};
}

Values lower_prelu_backward(Call& c) {
  const Value x = in(c, "self"), grad = in(c, "grad_output");
  const Value positive = is(Compare::kGt, x, 0);
  return {c.b.select(positive, grad, in(c, "weight") * grad),
          c.b.select(positive, zeros_like(x), x * grad)};
}

Values lower_hardtanh(Call& c) {
  const Value x = c.tensor("self");
  return {minimum(maximum(x, number(c, "min_val", x)), number(c, "max_val", x))};
}

Values lower_hardtanh_backward(Call& c) {
  const Value x = in(c, "self"), grad = in(c, "grad_output");
  const Value flat =
      c.b.or_(c.b.le(x, number(c, "min_val", x)), c.b.ge(x, number(c, "max_val", x)));
  return {c.b.select(flat, zeros_like(grad), grad)};
}

// min(max(x + 3, 0), 6) / 6
Value hard_gate(const Value& x) {
  Builder& b = x.builder();
  return minimum(maximum(x + 3, zeros_like(x)), b.like(x, 6)) / 6;
}

Values lower_hardsigmoid(Call& c) { return {hard_gate(in(c, "self"))}; }

Values lower_hardsigmoid_backward(Call& c) {
  const Value x = in(c, "self"), grad = in(c, "grad_output");
  const Value slope = c.b.and_(is(Compare::kGt, x, -3), is(Compare::kLt, x, 3));
  return {c.b.select(slope, grad / 6, zeros_like(grad))};
}

Values lower_hardswish(Call& c) {
  const Value x = in(c, "self");
  return {x * hard_gate(x)};
}

Values lower_hardswish_backward(Call& c) {
  const Value x = in(c, "self"), grad = in(c, "grad_output");
  const Value middle = c.b.select(is(Compare::kLt, x, 3), grad * (x / 3 + 0.5), grad);
  return {c.b.select(is(Compare::kLe, x, -3), zeros_like(grad), middle)};
}

// lambd is a bound on both sides: true where |x| <= lambd.
Value within(Call& c, const Value& x) {
  const Value bound = number(c, "lambd", x);
  return c.b.and_(c.b.ge(x, -bound), c.b.le(x, bound));
}

Values lower_hardshrink(Call& c) {
  const Value x = in(c, "self");
  return {c.b.select(within(c, x), zeros_like(x), x)};
}

Values lower_softshrink(Call& c) {
  const Value x = in(c, "self");
  const Value bound = number(c, "lambd", x);
  const Value below = c.b.select(c.b.lt(x, -bound), x + bound, x * 0);  // NaN stays
  return {c.b.select(c.b.gt(x, bound), x - bound, below)};
}

Values lower_shrink_backward(Call& c) {
  const Value x = in(c, "self");
  const Value grad = in(c, c.has("grad_out") ? "grad_out" : "grad_output");
  return {c.b.select(within(c, x), zeros_like(grad), grad)};
}

// In training each negative element gets a slope of its own, which `noise` keeps for the backward.
Values lower_rrelu_with_noise(Call& c) {
  const Value x = in(c, "self");
  const Value lower = number(c, "lower", x), upper = number(c, "upper", x);
  if (!c.flag("training")) {
    const Value slope = (lower + upper) / 2;
    return {c.b.select(is(Compare::kGt, x, 0), x, x * slope), c.tensor("noise")};
  }
  const Value drawn = uniform_bits01(c, x.dims(), x.dtype()) * (upper - lower) + lower;
  const Value slope = c.b.select(is(Compare::kLe, x, 0), drawn, ones_like(x));
  return {x * slope, cast(slope, c.dtype("noise"))};
}

// --- smooth -----------------------------------------------------------------------------------

constexpr double kGeluBeta = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
constexpr double kGeluKappa = 0.044715;
constexpr double kInvSqrt2 = 1 / std::numbers::sqrt2;

Value gelu_tanh_inner(const Value& x) { return (x + x * x * x * kGeluKappa) * kGeluBeta; }

// As PyTorch computes it. By erfc the negative tail would keep more digits, at twice the cost.
Value normal_cdf(const Value& x) { return (math::erf(x * kInvSqrt2) + 1) * 0.5; }

Values lower_gelu(Call& c) {
  const Value x = in(c, "self");
  if (c.string("approximate") == "tanh") {
    return {x * 0.5 * (tanh(gelu_tanh_inner(x)) + 1)};
  }
  return {x * normal_cdf(x)};
}

Values lower_gelu_backward(Call& c) {
  const Value x = in(c, "self"), grad = in(c, "grad_output");
  if (c.string("approximate") == "tanh") {
    const Value gate = tanh(gelu_tanh_inner(x));
    const Value inner = (x * x * (3 * kGeluKappa) + 1) * kGeluBeta;
    const Value left = (gate + 1) * 0.5;
    return {grad * (left + x * 0.5 * (1.0 - gate * gate) * inner)};
  }
  const Value pdf = exp(x * x * -0.5) * (std::numbers::inv_sqrtpi * kInvSqrt2);
  return {grad * (normal_cdf(x) + x * pdf)};
}

Values lower_silu(Call& c) {
  const Value x = in(c, "self");
  return {x * sigmoid(x)};
}

Values lower_silu_backward(Call& c) {
  const Value x = in(c, "self");
  const Value gate = sigmoid(x);
  return {in(c, "grad_output") * gate * (x * (1.0 - gate) + 1)};
}

Values lower_mish(Call& c) {
  const Value x = in(c, "self");
  return {x * tanh(log1p(exp(x)))};
}

Values lower_mish_backward(Call& c) {
  const Value x = in(c, "self");
  const Value gate = tanh(log1p(exp(x)));
  return {in(c, "grad_output") * (gate + x * sigmoid(x) * (1.0 - gate * gate))};
}

Values lower_sigmoid_backward(Call& c) {
  const Value y = in(c, "output");
  return {in(c, "grad_output") * math::conj_physical((1.0 - y) * y)};
}

Values lower_tanh_backward(Call& c) {
  const Value y = in(c, "output");
  return {in(c, "grad_output") * math::conj_physical(1.0 - y * y)};
}

Values lower_elu(Call& c) {
  const Value x = in(c, "self");
  const Value scale = number(c, "scale", x);
  const Value negative = expm1(x * number(c, "input_scale", x)) * (number(c, "alpha", x) * scale);
  return {c.b.select(is(Compare::kLt, x, 0), negative, x * scale)};
}

Values lower_elu_backward(Call& c) {
  const Value x = in(c, "self_or_result"), grad = in(c, "grad_output");
  const Value scale = number(c, "scale", x), input_scale = number(c, "input_scale", x);
  const Value coefficient = number(c, "alpha", x) * scale;
  const Value negative = c.flag("is_result")
                             ? grad * input_scale * (x + coefficient)
                             : grad * input_scale * coefficient * exp(x * input_scale);
  return {c.b.select(is(Compare::kLe, x, 0), negative, grad * scale)};
}

Values lower_softplus(Call& c) {
  const Value x = in(c, "self");
  const Value beta = number(c, "beta", x);
  const Value scaled = x * beta;
  const Value linear = c.b.gt(scaled, number(c, "threshold", x));
  return {c.b.select(linear, x, log1p(exp(scaled)) / beta)};
}

Values lower_softplus_backward(Call& c) {
  const Value x = in(c, "self"), grad = in(c, "grad_output");
  const Value scaled = x * number(c, "beta", x);
  const Value linear = c.b.gt(scaled, number(c, "threshold", x));
  return {c.b.select(linear, grad, grad * sigmoid(scaled))};
}

// The second output is scratch space that some devices pass to the backward; ours recomputes.
Values lower_log_sigmoid_forward(Call& c) {
  const Value x = in(c, "self");
  const Value decay = exp(-math::abs(x));
  const Value buffer = c.out(1).dims == x.dims() ? decay : full(c.b, 0, x.dtype(), c.out(1).dims);
  return {minimum(x, zeros_like(x)) - log1p(decay), buffer};
}

Values lower_log_sigmoid_backward(Call& c) {
  return {in(c, "grad_output") * sigmoid(-in(c, "self"))};
}

Values lower_logit_backward(Call& c) {
  Builder& b = c.b;
  const Value x = in(c, "self"), grad = in(c, "grad_output");
  const Value inside = grad / (x * (1.0 - x));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Value outside01 = b.or_(is(Compare::kLt, x, 0), is(Compare::kGt, x, 1));
  const Value unclamped = b.select(outside01, b.like(x, nan), inside);
  if (!c.has("eps")) {
    return {unclamped};
  }
  const Value eps = number(c, "eps", x);
  const Value clamped = b.select(b.or_(b.lt(x, eps), b.gt(x, 1.0 - eps)), zeros_like(x), inside);
  return {b.select(is(Compare::kLt, eps, 0), unclamped, clamped)};  // negative: no clamp
}

// --- glu --------------------------------------------------------------------------------------

struct Halves {
  Value a, b;
};

// The halves along c's `dim`; glu = a * sigmoid(b).
Halves halves(Call& c, std::string_view name) {
  const Value x = c.tensor(name);
  const int64_t dim = wrap_dim(c.integer("dim"), x.rank());
  const int64_t half = x.dim(dim) / 2;
  const Value wide = cast(x, opmath(x.dtype()));
  return {c.b.slice_dim(wide, dim, 0, half), c.b.slice_dim(wide, dim, half, 2 * half)};
}

Value wide(Call& c, std::string_view name) {
  const Value x = c.tensor(name);
  return cast(x, opmath(x.dtype()));
}

Values lower_glu(Call& c) {
  const auto [a, b] = halves(c, "self");
  return {a * sigmoid(b)};
}

Values lower_glu_backward(Call& c) {
  const auto [a, b] = halves(c, "self");
  const Value gate = sigmoid(b);
  const Value grad_a = wide(c, "grad_output") * gate;
  const Value grad_b = grad_a * (1.0 - gate) * a;
  return {c.b.concatenate({grad_a, grad_b}, wrap_dim(c.integer("dim"), a.rank()))};
}

Values lower_glu_jvp(Call& c) {
  const Value b = halves(c, "x").b;
  const auto [da, db] = halves(c, "dx");
  const Value gate = sigmoid(b);
  return {gate * da + wide(c, "glu") * (1.0 - gate) * db};
}

Values lower_glu_backward_jvp(Call& c) {
  const auto [a, b] = halves(c, "x");
  const auto [da, db] = halves(c, "dx");
  const Value grad = wide(c, "grad_glu"), dgrad = wide(c, "dgrad_glu");
  const Value gate = sigmoid(b);
  const Value slope = gate * (1.0 - gate);
  const Value grad_a = dgrad * gate + grad * slope * db;
  const Value grad_b = dgrad * slope * a + grad * slope * (da + a * (1.0 - gate * 2) * db);
  return {c.b.concatenate({grad_a, grad_b}, wrap_dim(c.integer("dim"), a.rank()))};
}

}  // namespace

void add_activation(Entries& t) {
  const std::pair<std::string_view, Lowering> entries[] = {
      {"relu", lower_relu},
      {"threshold_backward", lower_threshold_backward},
      {"leaky_relu", lower_leaky_relu},
      {"_prelu_kernel", lower_prelu},
      {"_prelu_kernel_backward", lower_prelu_backward},
      {"hardtanh", lower_hardtanh},
      {"hardtanh_backward", lower_hardtanh_backward},
      {"hardsigmoid", lower_hardsigmoid},
      {"hardsigmoid_backward", lower_hardsigmoid_backward},
      {"hardswish", lower_hardswish},
      {"hardswish_backward", lower_hardswish_backward},
      {"hardshrink", lower_hardshrink},
      {"hardshrink_backward", lower_shrink_backward},
      {"softshrink", lower_softshrink},
      {"softshrink_backward", lower_shrink_backward},
      {"gelu", lower_gelu},
      {"gelu_backward", lower_gelu_backward},
      {"silu", lower_silu},
      {"silu_backward", lower_silu_backward},
      {"mish", lower_mish},
      {"mish_backward", lower_mish_backward},
      {"sigmoid_backward", lower_sigmoid_backward},
      {"tanh_backward", lower_tanh_backward},
      {"elu", lower_elu},
      {"softplus", lower_softplus},
      {"softplus_backward", lower_softplus_backward},
      {"log_sigmoid_forward", lower_log_sigmoid_forward},
      {"log_sigmoid_backward", lower_log_sigmoid_backward},
      {"logit_backward", lower_logit_backward},
      {"glu", lower_glu},
      {"glu_backward", lower_glu_backward},
  };
  for (const auto& [name, lower] : entries) {
    t.push_back({.name = name, .lower = lower});
  }
  // A repeated element may be written twice: the second time changes nothing.
  t.push_back({.name = "threshold", .lower = lower_threshold, .constant = true});
  t.push_back({.name = "elu_backward", .lower = lower_elu_backward, .checks_numbers = true});
  t.push_back(
      {.name = "leaky_relu_backward", .lower = lower_leaky_relu_backward, .checks_numbers = true});
  // Forward-mode derivatives have no Meta kernels.
  t.push_back({.name = "glu_jvp", .lower = lower_glu_jvp, .no_meta = true});
  t.push_back({.name = "glu_backward_jvp", .lower = lower_glu_backward_jvp, .no_meta = true});
  t.push_back({.name = "rrelu_with_noise", .lower = lower_rrelu_with_noise, .random = true});
}

}  // namespace torch_tpu::ops
