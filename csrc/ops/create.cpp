// Tensors made from numbers: fill, ranges, identity, triangle indices; and isin.
#include <cmath>
#include <limits>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// fill_ overwrites self, so only the output's type may be used.
Values lower_fill_scalar(Call& c) {
  return {c.b.broadcast_to(c.scalar("value", c.out().dtype), c.out().dims)};
}

Values lower_fill_tensor(Call& c) {
  return {c.b.broadcast_to(cast(c.tensor("value"), c.out().dtype), c.out().dims)};
}

Values lower_zero(Call& c) { return {full(c.b, 0, c.out().dtype, c.out().dims)}; }

// --- ranges --------------------------------------------------------------------------------------

// start + i * step for i < n.
Value whole_range(Call& c, int64_t start, int64_t step) {
  Builder& b = c.b;
  const int64_t n = c.out().dims.at(0);
  int64_t end = 0;
  const bool overflows =
      __builtin_mul_overflow(step, n, &end) || __builtin_add_overflow(start, end, &end);
  const auto is_small = [](int64_t x) { return -(1 << 30) < x && x < (1 << 30); };
  const bool small = !overflows && is_small(start) && is_small(end) && is_small(step);
  const Type type(small ? DType::kS32 : DType::kS64, {n});
  return b.add(b.multiply(b.iota(type, 0), b.splat_int(step, type)), b.splat_int(start, type));
}

// Whether a double has every number of the range, so that it does not matter where it is computed.
bool is_exact(const Number& start, const Number& step, int64_t n) {
  const auto fits = [](double x) { return std::abs(x) < 0x1p53; };
  const double first = start.to_double(), by = step.to_double();
  return start.is_whole() && step.is_whole() && fits(first) && fits(by) &&
         fits(first + by * static_cast<double>(n));
}

// Both are known, since they decide n.
Value known_range(Call& c, const Number& start, const Number& step) {
  Builder& b = c.b;
  const DType t = opmath(c.out().dtype);
  const int64_t n = c.out().dims.at(0);
  // CPU converts the bounds to the output's type first.
  if (is_integer(c.out().dtype) || is_exact(start, step, n)) {
    return whole_range(c, start.truncated(), step.truncated());
  }
  // CPU computes in double. For f32 the constants of a short range are written out; a long one
  // would make the program long.
  const double first = start.to_double(), by = step.to_double();
  if (t != DType::kF64 && n <= 256) {
    std::vector<double> values(n);
    for (int64_t i = 0; i < n; ++i) values[i] = first + by * static_cast<double>(i);
    const DType written = is_float(t) ? t : DType::kF64;
    return b.floats(values, Type(written, {n}));
  }
  const DType wide = is_float(t) ? t : DType::kF64;
  return b.iota(Type(wide, {n}), 0) * by + first;
}

Values lower_arange(Call& c) {
  const Number start = c.has("start") ? c.known("start").value() : 0;
  const Number step = c.has("step") ? c.known("step").value() : 1;
  return {known_range(c, start, step)};
}

// CPU runs from both ends to the middle, which keeps the end exact.
Value from_both_ends(Call& c, const Value& start, const Value& end, int64_t steps) {
  Builder& b = c.b;
  const DType t = start.dtype();
  const DType counter = real_of(t);
  const Dims dims = {steps};
  const Value first = b.broadcast_to(start, dims);
  if (steps <= 1) return first;
  const Value last = b.broadcast_to(end, dims);
  // XLA would multiply by the reciprocal of a divisor that it knows, which rounds twice.
  const Value gaps = b.optimization_barrier({b.scalar(steps - 1, t)})[0];
  const Value step = b.broadcast_to(b.divide(b.subtract(end, start), gaps), dims);
  const Value i = b.iota(Type(counter, dims), 0);
  const Value up = b.add(first, b.multiply(step, cast(i, t)));
  const Value back = (steps - 1) - i;
  const Value down = b.subtract(last, b.multiply(step, cast(back, t)));
  return b.select(b.lt(i, b.like(i, steps / 2)), up, down);
}

Value spaced(Call& c) {
  const DType t = c.out().dtype;
  const int64_t steps = c.integer("steps");
  // Like CPU: the bounds get the output's dtype first, and integers are spaced in double.
  const bool whole = !is_float(t) && !is_complex(t);
  const auto bound = [&](std::string_view name) {
    if (!whole) return c.b.convert(c.scalar(name, t), opmath(t));
    return c.b.convert(c.b.convert(c.scalar(name, DType::kS64), t), DType::kF64);
  };
  return from_both_ends(c, bound("start"), bound("end"), steps);
}

Values lower_linspace(Call& c) {
  const Type& out = c.out();
  // What is alone has no space to keep: CPU fills with the start.
  if (c.integer("steps") == 1) {
    return {c.b.broadcast_to(c.scalar("start", out.dtype), out.dims)};
  }
  return {c.b.reshape(spaced(c), out.dims)};
}

Values lower_logspace(Call& c) {
  const Value exponents = c.b.reshape(spaced(c), c.out().dims);
  const Value base = c.scalar("base", exponents.dtype());
  return {c.b.power(c.b.broadcast_to(base, exponents.dims()), exponents)};
}

// --- matrices ------------------------------------------------------------------------------------

Values lower_eye(Call& c) {
  const Type positions(DType::kS32, c.out().dims);
  return {c.b.convert(c.b.eq(c.b.iota(positions, 0), c.b.iota(positions, 1)), DType::kS32)};
}

// Rows and columns of a triangle, row by row: the row is known from where each row starts.
Values triangle_indices(Call& c, bool lower) {
  Builder& b = c.b;
  const int64_t rows = c.integer("row"), columns = c.integer("col"), offset = c.integer("offset");
  const int64_t n = c.out().dims.at(1);
  if (n == 0) return {full(b, 0, c.out().dtype, c.out().dims)};
  const auto clamp = [&](int64_t column) {
    return std::min(std::max<int64_t>(column, 0), columns);
  };
  std::vector<int64_t> starts, first_columns;
  int64_t at = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = lower ? 0 : clamp(row + offset);
    const int64_t end = lower ? clamp(row + offset + 1) : columns;
    starts.push_back(at);
    first_columns.push_back(first - at);  // column = position + this
    at += std::max<int64_t>(end - first, 0);
  }
  const Type per_row(DType::kS32, {rows});
  const Value row = segment_ids(b.ints(starts, per_row), n);
  const Value shift = take_rows(b.ints(first_columns, per_row), row, 0);
  const Value column = b.add(b.iota(row.type(), 0), shift);
  return {b.concatenate({b.reshape(row, {1, n}), b.reshape(column, {1, n})}, 0)};
}

Values lower_tril_indices(Call& c) { return triangle_indices(c, /*lower=*/true); }
Values lower_triu_indices(Call& c) { return triangle_indices(c, /*lower=*/false); }

Values lower_one_hot(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const int64_t classes = c.integer("num_classes");
  c.check_range(self, 0, std::numeric_limits<int64_t>::max(), "Class values must be non-negative.");
  c.check_range(self, std::numeric_limits<int64_t>::min(), classes,
                "Class values must be smaller than num_classes.");
  Dims dims = self.dims();
  dims.push_back(classes);
  const Type positions(DType::kS64, dims);
  const Value here =
      b.eq(b.broadcast_in_dim(self, dims, range(self.rank())), b.iota(positions, self.rank()));
  return {b.convert(here, DType::kS64)};
}

// --- looking up ----------------------------------------------------------------------------------

// Above this many comparisons the test elements are sorted and searched.
constexpr int64_t kMaxComparisons = int64_t{1} << 24;

Values is_in(Call& c, const Value& elements, const Value& tests) {
  Builder& b = c.b;
  const int64_t n = elements.numel(), m = tests.numel();
  const Value x = b.reshape(elements, {n});
  const Value y = b.reshape(tests, {m});
  Value found;
  if (n == 0 || m == 0) {
    found = full(b, 0, DType::kBool, {n});
  } else if (n * m <= kMaxComparisons || is_complex(x.dtype())) {
    const Dims dims = {n, m};
    const Value equal = b.eq(b.broadcast_in_dim(x, dims, {0}), b.broadcast_in_dim(y, dims, {1}));
    found = b.reduce(equal, b.scalar(0, DType::kBool), {1}, Reduction::kOr);
  } else {
    const Value sorted = b.sort({y}, 0, /*stable=*/false, [&b](const Values& pair) -> Values {
      return {b.lt(pair[0], pair[1])};
    })[0];
    const Value at = search_sorted(sorted, x, /*right=*/false);
    found = b.eq(take_rows(sorted, b.minimum(at, b.like(at, m - 1)), 0), x);
  }
  if (c.flag("invert")) found = b.not_(found);
  return {b.reshape(found, c.out().dims)};
}

Values lower_isin_tensor_tensor(Call& c) {
  const DType t = c.common_dtype({"elements", "test_elements"});
  return is_in(c, cast(c.tensor("elements"), t), cast(c.tensor("test_elements"), t));
}

Values lower_isin_tensor_scalar(Call& c) {
  const DType t = c.common_dtype({"elements", "test_element"});
  return is_in(c, cast(c.tensor("elements"), t), c.scalar("test_element", t));
}

Values lower_isin_scalar_tensor(Call& c) {
  const DType t = c.common_dtype({"element", "test_elements"});
  return is_in(c, c.scalar("element", t), cast(c.tensor("test_elements"), t));
}

}  // namespace

void add_create(Entries& t) {
  t.push_back({.name = "fill.Scalar",
               .lower = lower_fill_scalar,
               .overwrites = true,
               .constant = true,
               .stores_numbers = true});
  t.push_back({.name = "fill.Tensor",
               .lower = lower_fill_tensor,
               .cpu_scalars = true,
               .overwrites = true,
               .constant = true});
  t.push_back({.name = "zero", .lower = lower_zero, .overwrites = true, .constant = true});
  // Autograd's lazy zero; here a constant is as cheap.
  t.push_back({.name = "_efficientzerotensor", .lower = lower_zero});
  // The bounds decide the size, so they are part of the key.
  t.push_back({.name = "arange", .lower = lower_arange, .keyed = {"end"}});
  t.push_back({.name = "arange.start", .lower = lower_arange, .keyed = {"start", "end"}});
  t.push_back(
      {.name = "arange.start_step", .lower = lower_arange, .keyed = {"start", "end", "step"}});
  t.push_back({.name = "range.out", .lower = lower_arange, .keyed = {"start", "end", "step"}});
  t.push_back({.name = "linspace.out", .lower = lower_linspace});
  t.push_back({.name = "logspace.out", .lower = lower_logspace});
  t.push_back({.name = "eye", .lower = lower_eye});
  t.push_back({.name = "eye.m", .lower = lower_eye});
  t.push_back({.name = "tril_indices", .lower = lower_tril_indices});
  t.push_back({.name = "triu_indices", .lower = lower_triu_indices});
  // The caller finds the number of classes where it is not given.
  t.push_back({.name = "one_hot", .lower = lower_one_hot, .internal = true, .no_meta = true});
  t.push_back({.name = "isin.Tensor_Tensor", .lower = lower_isin_tensor_tensor});
  t.push_back({.name = "isin.Tensor_Scalar", .lower = lower_isin_tensor_scalar});
  t.push_back({.name = "isin.Scalar_Tensor", .lower = lower_isin_scalar_tensor});
}

}  // namespace torch_tpu::ops
