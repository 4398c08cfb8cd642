// Reductions to a value: sums, products, extremes with and without indices, any/all, moments and
// norms. Running reductions are in scan.cpp, order statistics in sort.cpp.
#include "csrc/ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "csrc/ops/helpers.h"

namespace torch_tpu::ops {
namespace {

// The `dim` argument of a reduction, be it int, int[] or missing; missing means all.
Dims reduced_dims(Call& c, int64_t rank) {
  return wrap_dims(c.has("dim") ? c.ints("dim") : Dims{}, rank);
}

Dims reduced_dim(Call& c, int64_t rank) {
  return c.has("dim") ? wrap_dims({c.integer("dim")}, rank) : range(rank);
}

bool keepdim(Call& c) { return c.flag_or("keepdim", false); }

// Elements that go into one element of the result; nullopt where only the program knows.
std::optional<double> reduced_count(const Value& x, const Dims& dims) {
  double count = 1;
  for (int64_t dim : dims) {
    if (x.type().varies(dim)) return std::nullopt;
    count *= static_cast<double>(x.dim(dim));
  }
  return count;
}

// Converted before the sum, as CPU does: sum(int8, dtype=float64) and sum(half, out=float).
Value summand(Call& c) { return cast(c.tensor("self"), opmath(c.out().dtype)); }

Values lower_sum(Call& c) {
  const Value x = summand(c);
  return {reduce_sum(x, reduced_dims(c, x.rank()), keepdim(c))};
}

Values lower_nansum(Call& c) {
  Value x = c.tensor("self");
  if (is_float(x.dtype())) {
    x = c.b.select(c.b.ne(x, x), zeros_like(x), x);
  }
  x = cast(x, opmath(c.out().dtype));
  return {reduce_sum(x, reduced_dims(c, x.rank()), keepdim(c))};
}

Values lower_mean(Call& c) {
  const Value x = summand(c);
  return {reduce_mean(x, reduced_dims(c, x.rank()), keepdim(c))};
}

Values lower_prod(Call& c) {
  const Value x = summand(c);
  return {reduce_prod(x, reduced_dim(c, x.rank()), keepdim(c))};
}

Values lower_count_nonzero(Call& c) {
  const Value x = c.tensor("self");
  return {reduce_sum(cast(cast(x, DType::kBool), DType::kS64), reduced_dims(c, x.rank()))};
}

// --- extremes ---------------------------------------------------------------------------------

Values lower_amax(Call& c) {
  const Value x = c.tensor("self");
  return {reduce_max(x, reduced_dims(c, x.rank()), keepdim(c))};
}

Values lower_amin(Call& c) {
  const Value x = c.tensor("self");
  return {reduce_min(x, reduced_dims(c, x.rank()), keepdim(c))};
}

Values lower_aminmax(Call& c) {
  const Value x = c.tensor("self");
  const Dims dims = reduced_dim(c, x.rank());
  return {reduce_min(x, dims, keepdim(c)), reduce_max(x, dims, keepdim(c))};
}

struct Extreme {
  Value value, index;  // keepdim form
};

// The first position of the extreme value along `dim`, or of the first NaN. Two plain reductions
// run several times faster than one over (value, index) pairs, which XLA does not vectorize.
Extreme extreme(const Value& x, int64_t dim, bool largest) {
  Builder& b = x.builder();
  const Value best = largest ? reduce_max(x, {dim}, true) : reduce_min(x, {dim}, true);
  Value hit = b.eq(x, b.broadcast_to(best, x.dims()));
  if (is_float(x.dtype())) {
    hit = b.or_(hit, b.ne(x, x));  // a NaN is the extreme and equals nothing
  }
  const Value position = b.iota(Type(DType::kS32, x.dims()), dim);
  const Value none = full(b, x.dim(dim), DType::kS32, x.dims());
  return {best, cast(reduce_min(b.select(hit, position, none), {dim}, true), DType::kS64)};
}

Values lower_extreme_dim(Call& c, bool largest) {
  Value x = c.tensor("self");
  const int64_t dim = wrap_dim(c.integer("dim"), x.rank());
  if (x.rank() == 0) {
    x = c.b.reshape(x, {1});
  }
  if (x.dim(dim) == 0) throw std::invalid_argument("[max] expected elements along the dimension");
  const Extreme found = extreme(x, dim, largest);
  return {c.b.reshape(found.value, c.out(0).dims), c.b.reshape(found.index, c.out(1).dims)};
}

Values lower_arg_extreme(Call& c, bool largest) {
  Value x = c.tensor("self");
  int64_t dim = 0;
  if (c.has("dim") && x.rank() > 0) {
    dim = wrap_dim(c.integer("dim"), x.rank());
  } else {
    // Positions are counted in the true shape.
    for (int64_t d = 1; d < x.rank(); ++d) expect_whole(x, {d}, "argmax");
    x = c.b.reshape(x, {x.numel()});
  }
  return {c.b.reshape(extreme(x, dim, largest).index, c.out().dims)};
}

void expect_elements(Call& c) {
  if (c.tensor("self").numel() == 0) throw std::invalid_argument("[max] expected elements");
}

Values lower_max(Call& c) {
  expect_elements(c);
  return lower_amax(c);
}

Values lower_min(Call& c) {
  expect_elements(c);
  return lower_amin(c);
}

Values lower_max_dim(Call& c) { return lower_extreme_dim(c, true); }
Values lower_min_dim(Call& c) { return lower_extreme_dim(c, false); }
Values lower_argmax(Call& c) { return lower_arg_extreme(c, true); }
Values lower_argmin(Call& c) { return lower_arg_extreme(c, false); }

// --- any, all ---------------------------------------------------------------------------------

Value truth(Call& c, const Dims& dims, Reduction kind) {
  const Value x = cast(c.tensor("self"), DType::kBool);
  const Value start = c.b.scalar(kind == Reduction::kAnd, DType::kBool);
  const Value result = dims.empty() ? x : c.b.reduce(x, start, dims, kind);
  return keepdim(c) ? c.b.reshape(result, keep_dims(x.dims(), dims)) : result;
}

Dims truth_dims(Call& c) {
  const int64_t rank = c.tensor("self").rank();
  return reduced_dim(c, rank);
}

// Unlike everywhere else, an empty list reduces nothing here; None reduces all.
Dims truth_dims_list(Call& c) {
  const int64_t rank = c.tensor("self").rank();
  return c.has("dim") ? wrap_dims(c.ints("dim"), rank, /*empty_is_all=*/false) : range(rank);
}

Values lower_any(Call& c) { return {truth(c, truth_dims(c), Reduction::kOr)}; }
Values lower_all(Call& c) { return {truth(c, truth_dims(c), Reduction::kAnd)}; }
Values lower_any_dims(Call& c) { return {truth(c, truth_dims_list(c), Reduction::kOr)}; }
Values lower_all_dims(Call& c) { return {truth(c, truth_dims_list(c), Reduction::kAnd)}; }

// --- moments ----------------------------------------------------------------------------------

struct Moments {
  Value variance, mean;
};

// Two passes, since the sum of squares minus the square of the sum cancels.
Moments moments(Call& c) {
  Builder& b = c.b;
  const Value x = cast(c.tensor("self"), float_math(c.dtype("self")));
  const Dims dims = reduced_dims(c, x.rank());
  const Value mean = reduce_mean(x, dims, true);
  const Value centered = x - b.broadcast_to(mean, x.dims());
  const Value square =
      is_complex(x.dtype()) ? b.real(centered * b.conj(centered)) : centered * centered;
  const double correction = c.known("correction").value_or(1).to_double();
  const Value sum = reduce_sum(square, dims, keepdim(c));
  Value variance;
  if (const std::optional<double> count = reduced_count(x, dims)) {
    variance = sum / std::max(0.0, *count - correction);
  } else {
    const Value freedom = count_of(x, dims, sum.dtype()) - correction;
    variance = sum / b.broadcast_to(nan_maximum(freedom, zeros_like(freedom)), sum.dims());
  }
  return {variance, b.reshape(mean, variance.dims())};
}

Values lower_var(Call& c) { return {moments(c).variance}; }
Values lower_std(Call& c) { return {c.b.sqrt(moments(c).variance)}; }

Values lower_var_mean(Call& c) {
  const Moments m = moments(c);
  return {m.variance, m.mean};
}

Values lower_std_mean(Call& c) {
  const Moments m = moments(c);
  return {c.b.sqrt(m.variance), m.mean};
}

// --- norms ------------------------------------------------------------------------------------

Value vector_norm(Call& c, double p) {
  const Value x = c.tensor("self");
  const DType t = opmath(c.out().dtype);
  const Value magnitude = is_complex(x.dtype()) ? cast(c.b.abs(x), t) : c.b.abs(cast(x, t));
  return p_norm(magnitude, p, reduced_dims(c, x.rank()), keepdim(c));
}

Values lower_linalg_vector_norm(Call& c) {
  return {vector_norm(c, c.known("ord").value_or(2).to_double())};
}
Values lower_norm(Call& c) { return {vector_norm(c, c.known("p").value_or(2).to_double())}; }

Values lower_logsumexp(Call& c) {
  Builder& b = c.b;
  const Value x = cast(c.tensor("self"), opmath(c.out().dtype));
  const Dims dims = reduced_dims(c, x.rank());
  const bool complex = is_complex(x.dtype());
  const Value top = reduce_max_loose(complex ? b.real(x) : x, dims, true);
  // An infinite maximum would give inf - inf; NaN must stay NaN.
  const Value infinite = b.eq(b.abs(top), b.like(top, std::numeric_limits<double>::infinity()));
  const Value shift = cast(b.select(infinite, zeros_like(top), top), x.dtype());
  const Value sum = reduce_sum(b.exponential(x - b.broadcast_to(shift, x.dims())), dims, true);
  const Value result = b.log(sum) + shift;
  return {keepdim(c) ? result : b.reshape(result, without(x.dims(), dims))};
}

}  // namespace

Value p_norm(const Value& magnitude, double p, const Dims& dims, bool keepdim) {
  Builder& b = magnitude.builder();
  if (p == 0) {
    const Value nonzero = cast(magnitude, DType::kBool);
    return reduce_sum(cast(nonzero, magnitude.dtype()), dims, keepdim);
  }
  if (p == 1) {
    return reduce_sum(magnitude, dims, keepdim);
  }
  if (p == 2) {
    return b.sqrt(reduce_sum(magnitude * magnitude, dims, keepdim));
  }
  if (std::isinf(p) && reduced_count(magnitude, dims).value_or(1) > 0) {
    return p > 0 ? reduce_max(magnitude, dims, keepdim) : reduce_min(magnitude, dims, keepdim);
  }
  if (std::isinf(p)) {
    return reduce_sum(magnitude, dims, keepdim);  // of nothing: zero
  }
  const Value sum = reduce_sum(b.power(magnitude, b.like(magnitude, p)), dims, keepdim);
  return b.power(sum, b.like(sum, 1 / p));
}

void add_reduce(Entries& t) {
  t.push_back({.name = "sum", .lower = lower_sum});
  t.push_back({.name = "sum.dim_IntList", .lower = lower_sum});
  t.push_back({.name = "nansum", .lower = lower_nansum});
  t.push_back({.name = "mean", .lower = lower_mean});
  t.push_back({.name = "mean.dim", .lower = lower_mean});
  t.push_back({.name = "prod", .lower = lower_prod});
  t.push_back({.name = "prod.dim_int", .lower = lower_prod});
  t.push_back({.name = "count_nonzero.dim_IntList", .lower = lower_count_nonzero});

  t.push_back({.name = "amax", .lower = lower_amax});
  t.push_back({.name = "amin", .lower = lower_amin});
  t.push_back({.name = "aminmax", .lower = lower_aminmax});
  t.push_back({.name = "_aminmax", .lower = lower_aminmax, .no_meta = true});
  t.push_back({.name = "_aminmax.dim", .lower = lower_aminmax, .no_meta = true});
  t.push_back({.name = "max", .lower = lower_max});
  t.push_back({.name = "min", .lower = lower_min});
  t.push_back({.name = "max.dim", .lower = lower_max_dim, .overlap = Overlap::kSameOnly});
  t.push_back({.name = "min.dim", .lower = lower_min_dim, .overlap = Overlap::kSameOnly});
  t.push_back({.name = "argmax", .lower = lower_argmax});
  t.push_back({.name = "argmin", .lower = lower_argmin});

  t.push_back({.name = "any", .lower = lower_any});
  t.push_back({.name = "any.dim", .lower = lower_any});
  t.push_back({.name = "any.dims", .lower = lower_any_dims});
  t.push_back({.name = "all", .lower = lower_all});
  t.push_back({.name = "all.dim", .lower = lower_all});
  t.push_back({.name = "all.dims", .lower = lower_all_dims});

  t.push_back({.name = "var.correction", .lower = lower_var, .keyed = {"correction"}});
  t.push_back({.name = "std.correction", .lower = lower_std, .keyed = {"correction"}});
  t.push_back({.name = "var_mean.correction", .lower = lower_var_mean, .keyed = {"correction"}});
  t.push_back({.name = "std_mean.correction", .lower = lower_std_mean, .keyed = {"correction"}});

  t.push_back({.name = "linalg_vector_norm", .lower = lower_linalg_vector_norm, .keyed = {"ord"}});
  t.push_back({.name = "norm.ScalarOpt_dim", .lower = lower_norm, .keyed = {"p"}});
  t.push_back({.name = "norm.ScalarOpt_dim_dtype", .lower = lower_norm, .keyed = {"p"}});
  t.push_back({.name = "logsumexp", .lower = lower_logsumexp});
  add_distance(t);
}

}  // namespace torch_tpu::ops
