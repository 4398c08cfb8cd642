// The _foreach_ ops: one program with one output per list element, by the formulas of the single
// ops. The result of element i is computed in the dtype PyTorch expects of output i, half types in
// f32; operands broadcast per element. _foreach_copy_ and _foreach_clone have no entry: through
// their composite kernels each copy shares its source's value, or crosses devices.
#include <cmath>
#include <map>
#include <stdexcept>

#include "csrc/ops/elementwise.h"
#include "csrc/ops/special.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// --- one list ---------------------------------------------------------------------------------

template <math::Unary f>
Values lower_foreach(Call& c) {
  Values results;
  for (const Value& x : c.tensors("self")) {
    results.push_back(f(x));
  }
  return results;
}

template <math::Unary f>
Values lower_foreach_float(Call& c) {
  Values results;
  for (const Value& x : c.tensors("self")) {
    const DType out = c.out(results.size()).dtype;
    const bool whole = !is_float(x.dtype()) && !is_complex(x.dtype());
    if (whole) check_castable(DType::kF32, out);
    results.push_back(f(cast(x, float_dtype(x.dtype(), out))));
  }
  return results;
}

Value largest(const Value& x) { return reduce_max(x, range(x.rank())); }

Values lower_foreach_zero(Call& c) {
  Values results;
  for (size_t i = 0; i < c.num_outputs(); ++i) {
    results.push_back(full(c.b, 0, c.out(i).dtype, c.out(i).dims));
  }
  return results;
}

// --- list and operand -------------------------------------------------------------------------

// Where the second operand comes from: the overload of the op.
enum class Other { kList, kScalar, kScalarList, kTensor };

std::string_view other_name(const Call& c) {
  for (std::string_view name : {"other", "scalar", "scalars", "exponent", "weight", "weights"}) {
    if (c.has(name)) {
      return name;
    }
  }
  return "value";
}

// The second operands, fetched once per dtype: a list of hundreds must not convert them each time.
class Others {
 public:
  Others(Call& c, Other kind) : c_(c), kind_(kind), name_(other_name(c)) {}

  // That of element i, as a value of type (t, dims).
  Value at(size_t i, DType t, const Dims& dims) {
    Values& values = by_dtype_[t];
    if (values.empty()) {
      values = fetch(t);
    }
    check_castable(kind_of(i), t);  // in place, the result must fit
    return operand(values.at(index(i)), t, dims);
  }

  // The dtype of element i's; of a number, the widest of its kind.
  DType kind_of(size_t i) const {
    if (kind_ == Other::kTensor) return c_.dtype(name_);
    if (kind_ == Other::kList) return c_.tensors(name_).at(i).dtype();
    return c_.kind_of_scalar(name_, index(i));
  }

 private:
  // Where element i's is: a number or a tensor is for the whole list.
  size_t index(size_t i) const {
    return kind_ == Other::kScalar || kind_ == Other::kTensor ? 0 : i;
  }

  Values fetch(DType t) {
    switch (kind_) {
      case Other::kList:
        return c_.tensors(name_);
      case Other::kTensor:
        return {cast(c_.tensor(name_), t)};
      case Other::kScalar:
        return {c_.scalar(name_, t)};
      case Other::kScalarList:
        return c_.scalars(name_, t);
    }
    return {};
  }

  Call& c_;
  Other kind_;
  std::string_view name_;
  std::map<DType, Values> by_dtype_;
};

// As CPU: no bools are subtracted.
void check_subtraction(DType a, DType b) {
  if (a == DType::kBool || b == DType::kBool) {
    throw std::invalid_argument("[_foreach_sub] expected numbers, got bools");
  }
}

// As CPU: bools have a maximum among themselves, but not with a number.
template <Other kind>
void check_clamp(DType out) {
  if (out == DType::kBool && (kind == Other::kScalar || kind == Other::kScalarList)) {
    throw std::invalid_argument("[_foreach_clamp] expected numbers, got bools");
  }
}

// As CPU: alpha is of a kind that the results can hold, and a bool only for bools.
void check_alpha(DType alpha, DType out) {
  const bool whole = !is_float(out) && !is_complex(out);
  if ((alpha == DType::kBool && out != alpha) || (is_complex(alpha) && !is_complex(out)) ||
      (is_float(alpha) && whole)) {
    throw std::invalid_argument("[_foreach] expected an alpha that fits the results");
  }
}

template <math::Binary f, Other kind>
Values lower_foreach_binary(Call& c) {
  const Values self = c.tensors("self");
  Others others(c, kind);
  Values results;
  for (size_t i = 0; i < self.size(); ++i) {
    const Type& out = c.out(i);
    const DType t = opmath(out.dtype);
    if (f == math::div) check_castable(DType::kF32, out.dtype);
    if (f == math::sub) check_subtraction(self[i].dtype(), others.kind_of(i));
    if (f == math::maximum || f == math::minimum) check_clamp<kind>(out.dtype);
    results.push_back(f(operand(self[i], t, out.dims), others.at(i, t, out.dims)));
  }
  return results;
}

template <math::Binary f, Other kind>
Values lower_foreach_alpha(Call& c) {
  const Values self = c.tensors("self");
  Others others(c, kind);
  Values results;
  for (size_t i = 0; i < self.size(); ++i) {
    const Type& out = c.out(i);
    const DType t = opmath(out.dtype);
    if (f == math::sub) check_subtraction(self[i].dtype(), others.kind_of(i));
    check_alpha(c.kind_of_scalar("alpha"), out.dtype);
    Value b = others.at(i, t, out.dims);
    if (c.known("alpha") != 1) {
      b = math::mul(b, c.b.broadcast_to(c.scalar("alpha", t), out.dims));
    }
    results.push_back(f(operand(self[i], t, out.dims), b));
  }
  return results;
}

Values lower_foreach_pow_scalar(Call& c) {
  const auto exponent = c.known("exponent");
  if (!exponent) {
    return lower_foreach_binary<math::pow, Other::kScalar>(c);
  }
  const Values self = c.tensors("self");
  Others others(c, Other::kScalar);
  Values results;
  for (size_t i = 0; i < self.size(); ++i) {
    const Type& out = c.out(i);
    const DType t = opmath(out.dtype);
    const Value x = cast(self[i], t);
    const Value result = math::pow_known(x, *exponent);
    results.push_back(result ? result : math::pow(x, others.at(i, t, out.dims)));
  }
  return results;
}

Values lower_foreach_pow_scalar_and_tensor(Call& c) {
  Values results;
  for (const Value& exponent : c.tensors("exponent")) {
    const DType t = opmath(c.out(results.size()).dtype);
    const Value base = c.b.broadcast_to(c.scalar("self", t), exponent.dims());
    results.push_back(math::pow(base, cast(exponent, t)));
  }
  return results;
}

// --- three lists ------------------------------------------------------------------------------

using Ternary = Value (*)(const Value&, const Value&, const Value&, const Value&);

template <Ternary f, Other kind>
Values lower_foreach_addc(Call& c) {
  const Values self = c.tensors("self");
  const Values tensor1 = c.tensors("tensor1"), tensor2 = c.tensors("tensor2");
  Others others(c, kind);
  const bool plain = kind == Other::kScalar && c.known("value") == 1;
  Values results;
  for (size_t i = 0; i < self.size(); ++i) {
    const Type& out = c.out(i);
    const DType t = opmath(out.dtype);
    const Value value = plain ? Value() : others.at(i, t, out.dims);
    results.push_back(f(operand(self[i], t, out.dims), operand(tensor1[i], t, out.dims),
                        operand(tensor2[i], t, out.dims), value));
  }
  return results;
}

template <Other kind>
Values lower_foreach_lerp(Call& c) {
  const Values self = c.tensors("self"), end = c.tensors("tensors1");
  Others others(c, kind);
  Values results;
  for (size_t i = 0; i < self.size(); ++i) {
    const Type& out = c.out(i);
    const DType t = opmath(out.dtype);
    results.push_back(math::lerp(operand(self[i], t, out.dims), operand(end[i], t, out.dims),
                                 others.at(i, t, out.dims)));
  }
  return results;
}

// --- norms ------------------------------------------------------------------------------------

// sum(|x|^p); p = 0 counts what is not zero.
Value power_sum(const Value& x, double p) {
  const Dims all = range(x.rank());
  const Value magnitude = math::abs(x);
  if (p == 0) {
    const Value nonzero = x.builder().ne(magnitude, zeros_like(magnitude));
    return reduce_sum(cast(nonzero, magnitude.dtype()), all);
  }
  const Value known = math::pow_known(magnitude, p);
  return reduce_sum(known ? known : math::pow(magnitude, x.builder().like(magnitude, p)), all);
}

Value vector_norm(const Value& x, double p) {
  const Dims all = range(x.rank());
  if (std::isinf(p)) {
    return p > 0 ? (x.numel() == 0 ? full(x.builder(), 0, real_of(x.dtype()), {})
                                   : reduce_max(math::abs(x), all))
                 : reduce_min(math::abs(x), all);
  }
  const Value sum = power_sum(x, p);
  if (p == 0 || p == 1) {
    return sum;
  }
  return p == 2 ? math::sqrt(sum) : math::pow(sum, x.builder().like(sum, 1 / p));
}

template <Value (*f)(const Value&, double)>
Values lower_foreach_norm(Call& c) {
  Values results;
  for (const Value& x : c.tensors("self")) {
    const DType requested = c.dtype_arg("dtype").value_or(x.dtype());
    results.push_back(f(cast(x, opmath(requested)), c.known("ord")->to_double()));
  }
  return results;
}

}  // namespace

void add_foreach(Entries& t) {
  using Row = std::pair<std::string_view, Lowering>;
  const Row lists[] = {
      {"_foreach_abs", lower_foreach<math::abs>},
      {"_foreach_neg", lower_foreach<math::neg>},
      {"_foreach_sign", lower_foreach<math::sign>},
      {"_foreach_ceil", lower_foreach<math::ceil>},
      {"_foreach_floor", lower_foreach<math::floor>},
      {"_foreach_trunc", lower_foreach<math::trunc>},
      {"_foreach_round", lower_foreach<math::round>},
      {"_foreach_frac", lower_foreach<math::frac>},
      {"_foreach_max", lower_foreach<largest>},
      {"_foreach_reciprocal", lower_foreach_float<math::reciprocal>},
      {"_foreach_sqrt", lower_foreach_float<math::sqrt>},
      {"_foreach_rsqrt", lower_foreach_float<math::rsqrt>},
      {"_foreach_exp", lower_foreach_float<math::exp>},
      {"_foreach_expm1", lower_foreach_float<math::expm1>},
      {"_foreach_log", lower_foreach_float<math::log>},
      {"_foreach_log2", lower_foreach_float<math::log2>},
      {"_foreach_log10", lower_foreach_float<math::log10>},
      {"_foreach_log1p", lower_foreach_float<math::log1p>},
      {"_foreach_sin", lower_foreach_float<math::sin>},
      {"_foreach_cos", lower_foreach_float<math::cos>},
      {"_foreach_tan", lower_foreach_float<math::tan>},
      {"_foreach_asin", lower_foreach_float<math::asin>},
      {"_foreach_acos", lower_foreach_float<math::acos>},
      {"_foreach_atan", lower_foreach_float<math::atan>},
      {"_foreach_sinh", lower_foreach_float<math::sinh>},
      {"_foreach_cosh", lower_foreach_float<math::cosh>},
      {"_foreach_tanh", lower_foreach_float<math::tanh>},
      {"_foreach_sigmoid", lower_foreach_float<math::sigmoid>},
      {"_foreach_erf", lower_foreach_float<math::erf>},
      {"_foreach_erfc", lower_foreach_float<math::erfc>},
      {"_foreach_lgamma", lower_foreach_float<math::lgamma>},

      {"_foreach_add.List", lower_foreach_alpha<math::add, Other::kList>},
      {"_foreach_add.Scalar", lower_foreach_binary<math::add, Other::kScalar>},
      {"_foreach_add.ScalarList", lower_foreach_binary<math::add, Other::kScalarList>},
      {"_foreach_sub.List", lower_foreach_alpha<math::sub, Other::kList>},
      {"_foreach_sub.Scalar", lower_foreach_binary<math::sub, Other::kScalar>},
      {"_foreach_sub.ScalarList", lower_foreach_binary<math::sub, Other::kScalarList>},
      {"_foreach_mul.List", lower_foreach_binary<math::mul, Other::kList>},
      {"_foreach_mul.Scalar", lower_foreach_binary<math::mul, Other::kScalar>},
      {"_foreach_mul.ScalarList", lower_foreach_binary<math::mul, Other::kScalarList>},
      {"_foreach_div.List", lower_foreach_binary<math::div, Other::kList>},
      {"_foreach_div.Scalar", lower_foreach_binary<math::div, Other::kScalar>},
      {"_foreach_div.ScalarList", lower_foreach_binary<math::div, Other::kScalarList>},
      {"_foreach_maximum.List", lower_foreach_binary<math::maximum, Other::kList>},
      {"_foreach_maximum.Scalar", lower_foreach_binary<math::maximum, Other::kScalar>},
      {"_foreach_maximum.ScalarList", lower_foreach_binary<math::maximum, Other::kScalarList>},
      {"_foreach_minimum.List", lower_foreach_binary<math::minimum, Other::kList>},
      {"_foreach_minimum.Scalar", lower_foreach_binary<math::minimum, Other::kScalar>},
      {"_foreach_minimum.ScalarList", lower_foreach_binary<math::minimum, Other::kScalarList>},
      {"_foreach_clamp_min.List", lower_foreach_binary<math::maximum, Other::kList>},
      {"_foreach_clamp_min.Scalar", lower_foreach_binary<math::maximum, Other::kScalar>},
      {"_foreach_clamp_min.ScalarList", lower_foreach_binary<math::maximum, Other::kScalarList>},
      {"_foreach_clamp_max.List", lower_foreach_binary<math::minimum, Other::kList>},
      {"_foreach_clamp_max.Scalar", lower_foreach_binary<math::minimum, Other::kScalar>},
      {"_foreach_clamp_max.ScalarList", lower_foreach_binary<math::minimum, Other::kScalarList>},
      {"_foreach_pow.List", lower_foreach_binary<math::pow, Other::kList>},
      {"_foreach_pow.ScalarList", lower_foreach_binary<math::pow, Other::kScalarList>},
      {"_foreach_pow.ScalarAndTensor", lower_foreach_pow_scalar_and_tensor},

      {"_foreach_addcmul.Scalar", lower_foreach_addc<math::addcmul, Other::kScalar>},
      {"_foreach_addcmul.ScalarList", lower_foreach_addc<math::addcmul, Other::kScalarList>},
      {"_foreach_addcdiv.Scalar", lower_foreach_addc<math::addcdiv, Other::kScalar>},
      {"_foreach_addcdiv.ScalarList", lower_foreach_addc<math::addcdiv, Other::kScalarList>},
      {"_foreach_lerp.List", lower_foreach_lerp<Other::kList>},
      {"_foreach_lerp.Scalar", lower_foreach_lerp<Other::kScalar>},
      {"_foreach_lerp.ScalarList", lower_foreach_lerp<Other::kScalarList>},
  };
  // `other` is one 0-d tensor for the whole list, on the device or on the host.
  const Row with_tensor[] = {
      {"_foreach_add.Tensor", lower_foreach_alpha<math::add, Other::kTensor>},
      {"_foreach_mul.Tensor", lower_foreach_binary<math::mul, Other::kTensor>},
      {"_foreach_div.Tensor", lower_foreach_binary<math::div, Other::kTensor>},
  };
  // The second list may be 0-d tensors on the host, as the optimizers' steps are.
  for (const auto& [name, lower] : lists) {
    t.push_back({.name = name, .lower = lower, .cpu_scalars = name.ends_with(".List")});
  }
  for (const auto& [name, lower] : with_tensor) {
    t.push_back({.name = name, .lower = lower, .cpu_scalars = true});
  }
  t.push_back({.name = "_foreach_zero", .lower = lower_foreach_zero, .overwrites = true});
  t.push_back({.name = "_foreach_pow.Scalar",
               .lower = lower_foreach_pow_scalar,
               .special = math::known_exponents()});
  t.push_back(
      {.name = "_foreach_norm.Scalar", .lower = lower_foreach_norm<vector_norm>, .keyed = {"ord"}});
  t.push_back(
      {.name = "_foreach_powsum.Scalar", .lower = lower_foreach_norm<power_sum>, .keyed = {"ord"}});
}

}  // namespace torch_tpu::ops
