// Elementwise ops that compare, select or work on bits: comparisons, predicates, logical and
// bitwise ops, maximum/minimum, clamp, where, masked_fill, isclose.
#include <stdexcept>

#include "csrc/ops/elementwise.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// Rounds both operands to exactly the promoted dtype first, as CPU does: bf16(0.1) == 0.1.
template <Compare direction>
Values lower_compare(Call& c) {
  const DType t = c.common_dtype({"self", "other"});
  const Dims& dims = c.out().dims;
  return {c.b.compare(direction, operand(c.tensor("self"), t, dims),
                      operand(c.tensor("other"), t, dims))};
}

template <Compare direction>
Values lower_compare_scalar(Call& c) {
  const DType t = c.common_dtype({"self", "other"});
  const Value x = cast(c.tensor("self"), t);
  return {c.b.compare(direction, x, c.b.broadcast_to(c.scalar("other", t), x.dims()))};
}

template <math::Unary f>
Values lower_predicate(Call& c) {
  return {f(c.tensor("self"))};
}

template <math::Binary f>
Values lower_logical(Call& c) {
  const Dims& dims = c.out().dims;
  return {f(operand(c.tensor("self"), DType::kBool, dims),
            operand(c.tensor("other"), DType::kBool, dims))};
}

template <math::Binary f>
Values lower_same(Call& c) {
  const DType t = c.common_dtype({"self", "other"});
  const Dims& dims = c.out().dims;
  return {f(operand(c.tensor("self"), t, dims), operand(c.tensor("other"), t, dims))};
}

template <math::Binary f>
Values lower_same_scalar(Call& c) {
  const DType t = c.common_dtype({"self", "other"});
  const Value x = cast(c.tensor("self"), t);
  return {f(x, c.b.broadcast_to(c.scalar("other", t), x.dims()))};
}

Values clamp(Call& c, const Value& low, const Value& high, DType t) {
  const Dims& dims = c.out().dims;
  Value x = operand(c.tensor("self"), t, dims);
  if (low) {
    x = math::maximum(x, operand(low, t, dims));
  }
  if (high) {
    x = math::minimum(x, operand(high, t, dims));
  }
  return {x};
}

Values lower_clamp(Call& c) {
  const DType t = c.common_dtype({"self", "min", "max"});
  if (t == DType::kBool) throw std::invalid_argument("[clamp] expected numbers, got bools");
  return clamp(c, c.has("min") ? c.scalar("min", t) : Value(),
               c.has("max") ? c.scalar("max", t) : Value(), t);
}

Values lower_clamp_tensor(Call& c) {
  return clamp(c, c.has("min") ? c.tensor("min") : Value(),
               c.has("max") ? c.tensor("max") : Value(), c.common_dtype({"self", "min", "max"}));
}

Values lower_where(Call& c) {
  const DType t = c.common_dtype({"self", "other"});
  const Dims& dims = c.out().dims;
  return {c.b.select(operand(c.tensor("condition"), DType::kBool, dims),
                     operand(c.tensor("self"), t, dims), operand(c.tensor("other"), t, dims))};
}

Values masked_fill(Call& c, const Value& value) {
  const Value self = c.tensor("self");
  const Dims& dims = c.out().dims;
  return {c.b.select(operand(c.tensor("mask"), DType::kBool, dims),
                     operand(value, self.dtype(), dims), c.b.broadcast_to(self, dims))};
}

Values lower_masked_fill_scalar(Call& c) {
  return masked_fill(c, c.scalar("value", c.dtype("self")));
}

Values lower_masked_fill_tensor(Call& c) { return masked_fill(c, c.tensor("value")); }

Values lower_isclose(Call& c) {
  Builder& b = c.b;
  const DType promoted = c.common_dtype({"self", "other"});
  const bool exact = !is_float(promoted) && !is_complex(promoted);
  const DType t = exact ? DType::kF32 : promoted;
  const DType real = real_of(t);
  const Dims dims = broadcast_shape(c.tensor("self").dims(), c.tensor("other").dims());
  const Value self = operand(c.tensor("self"), promoted, dims);
  const Value other = operand(c.tensor("other"), promoted, dims);
  Value close = b.eq(self, other);
  if (c.flag("equal_nan")) {
    close = b.or_(close, b.and_(math::isnan(self), math::isnan(other)));
  }
  const Value difference = math::abs(cast(self, t) - cast(other, t));
  const Value rtol = b.broadcast_to(c.scalar("rtol", real), dims);
  const Value atol = b.broadcast_to(c.scalar("atol", real), dims);
  const Value allowed = atol + math::abs(rtol * math::abs(cast(other, t)));
  const Value near = b.and_(math::isfinite(difference), b.le(difference, allowed));
  return {b.or_(close, near)};
}

}  // namespace

void add_compare(Entries& t) {
  const std::pair<std::string_view, Lowering> with_cpu_scalars[] = {
      {"eq.Tensor", lower_compare<Compare::kEq>},
      {"ne.Tensor", lower_compare<Compare::kNe>},
      {"lt.Tensor", lower_compare<Compare::kLt>},
      {"le.Tensor", lower_compare<Compare::kLe>},
      {"gt.Tensor", lower_compare<Compare::kGt>},
      {"ge.Tensor", lower_compare<Compare::kGe>},
      {"logical_and", lower_logical<math::bitwise_and>},
      {"logical_or", lower_logical<math::bitwise_or>},
      {"logical_xor", lower_logical<math::bitwise_xor>},
      {"bitwise_and.Tensor", lower_same<math::bitwise_and>},
      {"bitwise_or.Tensor", lower_same<math::bitwise_or>},
      {"bitwise_xor.Tensor", lower_same<math::bitwise_xor>},
      {"bitwise_left_shift.Tensor", lower_same<math::bitwise_left_shift>},
      {"bitwise_right_shift.Tensor", lower_same<math::bitwise_right_shift>},
      {"__lshift__.Tensor", lower_same<math::bitwise_left_shift>},
      {"__rshift__.Tensor", lower_same<math::bitwise_right_shift>},
      {"__ilshift__.Tensor", lower_same<math::bitwise_left_shift>},
      {"__irshift__.Tensor", lower_same<math::bitwise_right_shift>},
      {"maximum", lower_same<math::maximum>},
      {"minimum", lower_same<math::minimum>},
      {"fmax", lower_same<math::fmax>},
      {"fmin", lower_same<math::fmin>},
      {"clamp.Tensor", lower_clamp_tensor},
      {"clamp_min.Tensor", lower_clamp_tensor},
      {"clamp_max.Tensor", lower_clamp_tensor},
      {"where.self", lower_where},
      {"isclose", lower_isclose},
  };
  const std::pair<std::string_view, Lowering> device_only[] = {
      {"eq.Scalar", lower_compare_scalar<Compare::kEq>},
      {"ne.Scalar", lower_compare_scalar<Compare::kNe>},
      {"lt.Scalar", lower_compare_scalar<Compare::kLt>},
      {"le.Scalar", lower_compare_scalar<Compare::kLe>},
      {"gt.Scalar", lower_compare_scalar<Compare::kGt>},
      {"ge.Scalar", lower_compare_scalar<Compare::kGe>},
      {"__lshift__.Scalar", lower_same_scalar<math::bitwise_left_shift>},
      {"__rshift__.Scalar", lower_same_scalar<math::bitwise_right_shift>},
      {"__ilshift__.Scalar", lower_same_scalar<math::bitwise_left_shift>},
      {"__irshift__.Scalar", lower_same_scalar<math::bitwise_right_shift>},
      {"isnan", lower_predicate<math::isnan>},
      {"isinf", lower_predicate<math::isinf>},
      {"isposinf", lower_predicate<math::isposinf>},
      {"isneginf", lower_predicate<math::isneginf>},
      {"isfinite", lower_predicate<math::isfinite>},
      {"signbit", lower_predicate<math::signbit>},
      {"logical_not", lower_predicate<math::logical_not>},
      {"clamp", lower_clamp},
      {"clamp_min", lower_clamp},
      {"clamp_max", lower_clamp},
  };
  for (const auto& [name, lower] : with_cpu_scalars) {
    t.push_back({.name = name, .lower = lower, .cpu_scalars = true});
  }
  for (const auto& [name, lower] : device_only) {
    t.push_back({.name = name, .lower = lower});
  }
  t.push_back(
      {.name = "masked_fill.Scalar", .lower = lower_masked_fill_scalar, .stores_numbers = true});
  // The value is a number; it may lie in self.
  t.push_back({.name = "masked_fill.Tensor",
               .lower = lower_masked_fill_tensor,
               .cpu_scalars = true,
               .overlap = Overlap::kFine});
}

}  // namespace torch_tpu::ops
