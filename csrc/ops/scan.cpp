// Running reductions: cumsum, cumprod, cummax, cummin, logcumsumexp.
#include "csrc/ops/scan.h"

#include <limits>

#include "csrc/ops/helpers.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// A window that ends at each element. XLA recognizes the form and turns long ones into a tree of
// blocks, on every platform; written out by hand it compiles slower and runs no faster.
stablehlo::Window running_window(const Value& x, int64_t dim) {
  const Dims ones(x.rank(), 1), zeros(x.rank(), 0);
  stablehlo::Window window{.sizes = ones,
                           .strides = ones,
                           .padding_low = zeros,
                           .padding_high = zeros,
                           .base_dilation = {},
                           .window_dilation = {},
                           .reversal = {}};
  window.sizes[dim] = x.dim(dim);
  window.padding_low[dim] = x.dim(dim) - 1;
  return window;
}

bool trivial(const Value& x) { return x.rank() == 0 || x.numel() == 0; }

int64_t scanned_dim(Call& c, const Value& x) { return wrap_dim(c.integer("dim"), x.rank()); }

Values lower_cumsum(Call& c) {
  const Value x = cast(c.tensor("self"), opmath(c.out().dtype));
  return {scan(x, scanned_dim(c, x), Reduction::kAdd)};
}

Values lower_cumprod(Call& c) {
  const Value x = cast(c.tensor("self"), opmath(c.out().dtype));
  return {scan(x, scanned_dim(c, x), Reduction::kMul)};
}

// An element takes over the lead exactly where it equals the running extreme, or is NaN; the index
// is the last such place, so it is a running maximum itself.
Values running_extreme(Call& c, Reduction kind) {
  Builder& b = c.b;
  const Value x = c.tensor("self");
  if (trivial(x)) {
    return {x, full(b, 0, DType::kS64, x.dims())};
  }
  const int64_t dim = scanned_dim(c, x);
  const Value values = scan(x, dim, kind);
  Value leads = b.eq(x, values);
  if (is_float(x.dtype())) {
    leads = b.or_(leads, b.ne(x, x));
  }
  const Value position = b.iota(Type(DType::kS32, x.dims()), dim);
  const Value indices = scan(b.select(leads, position, zeros_like(position)), dim, Reduction::kMax);
  return {values, cast(indices, DType::kS64)};
}

Values lower_cummax(Call& c) { return running_extreme(c, Reduction::kMax); }
Values lower_cummin(Call& c) { return running_extreme(c, Reduction::kMin); }

Value log_add_exp(const Value& x, const Value& y) {
  Builder& b = x.builder();
  const bool complex = is_complex(x.dtype());
  const Value x_size = complex ? b.real(x) : x;
  const Value y_size = complex ? b.real(y) : y;
  const Value x_larger = b.ge(x_size, y_size);
  const Value high = b.select(x_larger, x, y);
  const Value low = b.select(x_larger, y, x);
  const Value sum = high + b.log_plus_one(b.exponential(low - high));
  // inf - inf is NaN, but the sum of two equal infinities is that infinity.
  const Value size = b.select(x_larger, x_size, y_size);
  const Value infinite = b.eq(b.abs(size), b.like(size, std::numeric_limits<double>::infinity()));
  return b.select(b.and_(infinite, b.eq(x_size, y_size)), high, sum);
}

Values lower_logcumsumexp(Call& c) {
  Builder& b = c.b;
  const DType given = c.dtype("self");
  const Value x = cast(c.tensor("self"), opmath(given));
  if (trivial(x)) {
    return {cast(x, given)};
  }
  const Value start = b.scalar(-std::numeric_limits<double>::infinity(), x.dtype());
  const Values result =
      b.reduce_window({x}, {start}, running_window(x, scanned_dim(c, x)),
                      [](const Values& args) { return Values{log_add_exp(args[0], args[1])}; });
  return {cast(result[0], given)};
}

}  // namespace

Value scan(const Value& x, int64_t dim, Reduction kind) {
  if (trivial(x)) {
    return x;
  }
  Builder& b = x.builder();
  Value start;
  switch (kind) {
    case Reduction::kMax:
      start = b.lowest(x.dtype());
      break;
    case Reduction::kMin:
      start = b.highest(x.dtype());
      break;
    default:
      start = b.scalar(kind == Reduction::kMul ? 1 : 0, x.dtype());
  }
  if (kind == Reduction::kMax || kind == Reduction::kMin) {
    return b.reduce_window({x}, {start}, running_window(x, dim), nan_extreme_body(kind))[0];
  }
  return b.reduce_window(x, start, running_window(x, dim), kind);
}

void add_scan(Entries& t) {
  t.push_back({.name = "cumsum", .lower = lower_cumsum});
  t.push_back({.name = "cumprod", .lower = lower_cumprod});
  t.push_back({.name = "cummax", .lower = lower_cummax});
  t.push_back({.name = "cummin", .lower = lower_cummin});
  t.push_back({.name = "logcumsumexp", .lower = lower_logcumsumexp});
  t.push_back({.name = "_logcumsumexp", .lower = lower_logcumsumexp, .no_meta = true});
}

}  // namespace torch_tpu::ops
