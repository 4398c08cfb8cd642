// Counting values: histc, histogram, histogramdd, bincount.
#include <cmath>
#include <stdexcept>
#include <string>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

void check_finite(Call& c, const Value& low, const Value& high, const std::string& message) {
  const Value finite = c.b.and_(c.b.is_finite(low), c.b.is_finite(high));
  c.check_range(c.b.convert(c.b.not_(finite), DType::kS64), 0, 1, message);
}

// Equal bounds mean the range of the data; what is outside, and NaN, counts nowhere.
Values lower_histc(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const DType t = float_math(self.dtype());
  const int64_t bins = c.integer("bins");
  const int64_t n = self.numel();
  const Value zeros = full(b, 0, DType::kS32, {bins});
  if (n == 0) return {zeros};
  const Value x = b.reshape(cast(self, t), {n});
  Value low = c.scalar("min", t);
  Value high = c.scalar("max", t);
  const Value from_data = b.eq(low, high);
  low = b.select(from_data, reduce_min(x, {0}), low);
  high = b.select(from_data, reduce_max(x, {0}), high);
  check_finite(c, low, high, "torch.histc: range of the data is not finite");
  const Value flat = b.eq(low, high);
  low = b.select(flat, low - 1, low);
  high = b.select(flat, high + 1, high);
  const auto spread = [&](const Value& v) { return b.broadcast_to(v, x.dims()); };
  const Value inside = b.and_(b.ge(x, spread(low)), b.le(x, spread(high)));
  const Value position = b.divide((x - spread(low)) * bins, spread(b.subtract(high, low)));
  const Value bin =
      b.minimum(b.convert(position, DType::kS32), full(b, bins - 1, DType::kS32, {n}));
  const Value target = b.select(inside, bin, b.like(bin, -1));
  return {put_rows(zeros, target, full(b, 1, DType::kS32, {n}), 0, Combine::kAdd)};
}

// --- histogram: points are the rows of [n, dims] -------------------------------------------------

void expect(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// The samples as [n, dims], and their weights as [n].
struct Samples {
  Value points, weights;
};

Samples samples_of(Call& c, bool flat) {
  const Value self = c.tensor("self");
  expect(self.dtype() == DType::kF32 || self.dtype() == DType::kF64, "expected floats");
  expect(flat || self.rank() >= 2, "expected a matrix of points");
  const int64_t dims = flat ? 1 : self.dim(-1);
  expect(dims > 0, "expected points of at least one dimension");
  const int64_t n = self.numel() / dims;
  Samples out;
  out.points = c.b.reshape(self, {n, dims});
  if (const Value weight = c.optional_tensor("weight")) {
    Dims shape = self.dims();
    if (!flat) shape.pop_back();
    expect(weight.dims() == shape && weight.dtype() == self.dtype(), "expected a weight a point");
    out.weights = c.b.reshape(weight, {n});
  } else {
    out.weights = full(c.b, 1, self.dtype(), {n});
  }
  return out;
}

// linspace(low, high, bins + 1) as CPU computes it, from both ends to the middle.
Value even_edges(const Value& low, const Value& high, int64_t bins) {
  Builder& b = low.builder();
  const Dims dims = {bins + 1};
  const auto spread = [&](const Value& v) { return b.broadcast_to(v, dims); };
  const Value step = spread(b.subtract(high, low) / bins);
  const Value i = b.iota(Type(low.dtype(), dims), 0);
  const Value up = b.add(spread(low), b.multiply(step, i));
  const Value down = b.subtract(spread(high), b.multiply(step, bins - i));
  return b.select(b.lt(i, b.like(i, (bins + 1) / 2)), up, down);
}

// Edges of each dimension: over the range given, else over the data's.
Values edges_of(Call& c, const Value& points, const Dims& bins) {
  Builder& b = c.b;
  const DType t = points.dtype();
  const int64_t n = points.dim(0), dims = points.dim(1);
  expect(static_cast<int64_t>(bins.size()) == dims, "expected a number of bins a dimension");
  const std::vector<double> range = c.floats("range");
  expect(range.empty() || static_cast<int64_t>(range.size()) == 2 * dims, "expected two bounds");
  Values edges;
  for (int64_t d = 0; d < dims; ++d) {
    expect(bins[d] > 0, "expected at least one bin");
    Value low = b.scalar(0, t), high = b.scalar(1, t);
    if (!range.empty()) {
      const double from = range[2 * d], to = range[2 * d + 1];
      expect(std::isfinite(from) && std::isfinite(to) && from <= to, "expected a finite range");
      low = b.scalar(from == to ? from - 0.5 : from, t);
      high = b.scalar(from == to ? to + 0.5 : to, t);
    } else if (n > 0) {
      const Value column = b.reshape(b.slice_dim(points, 1, d, d + 1), {n});
      low = reduce_min(column, {0});
      high = reduce_max(column, {0});
      check_finite(c, low, high,
                   "torch.histogramdd: dimension " + std::to_string(d) +
                       "'s range of the data is not finite");
      const Value same = b.eq(low, high);
      low = b.select(same, low - 0.5, low);
      high = b.select(same, high + 0.5, high);
    }
    edges.push_back(even_edges(low, high, bins[d]));
  }
  return edges;
}

// A bin holds its left edge; the last one its right edge too.
Value count_points(Call& c, const Samples& samples, const Values& edges) {
  Builder& b = c.b;
  const int64_t n = samples.points.dim(0);
  Dims shape;
  Value cell = full(b, 0, DType::kS32, {n});
  Value inside = full(b, 1, DType::kBool, {n});
  for (size_t d = 0; d < edges.size(); ++d) {
    const int64_t last = edges[d].dim(0) - 1;
    expect(last > 0, "expected at least one bin");
    const int64_t at = static_cast<int64_t>(d);
    const Value x = b.reshape(b.slice_dim(samples.points, 1, at, at + 1), {n});
    const auto edge = [&](int64_t i) {
      return b.broadcast_to(b.reshape(b.slice(edges[d], {i}, {i + 1}), {}), {n});
    };
    Value bin = search_sorted(edges[d], x, /*right=*/true) - 1;
    bin = b.minimum(bin, b.like(bin, last - 1));
    inside = b.and_(inside, b.and_(b.ge(x, edge(0)), b.le(x, edge(last))));
    cell = b.add(cell * last, bin);
    shape.push_back(last);
  }
  const Value zeros = full(b, 0, samples.points.dtype(), {stablehlo::product(shape)});
  const Value target = b.select(inside, cell, b.like(cell, -1));
  Value hist = b.reshape(put_rows(zeros, target, samples.weights, 0, Combine::kAdd), shape);
  if (!c.flag("density")) return hist;
  hist = b.divide(hist, b.broadcast_to(reduce_sum(hist, range(hist.rank())), shape));
  for (size_t d = 0; d < edges.size(); ++d) {
    const int64_t bins = shape[d];
    const Value width =
        b.subtract(b.slice(edges[d], {1}, {bins + 1}), b.slice(edges[d], {0}, {bins}));
    hist = b.divide(hist, b.broadcast_in_dim(width, shape, {static_cast<int64_t>(d)}));
  }
  return hist;
}

Values lower_histogram_bin_ct(Call& c) {
  const Samples samples = samples_of(c, /*flat=*/true);
  const Values edges = edges_of(c, samples.points, {c.integer("bins")});
  return {count_points(c, samples, edges), edges[0]};
}

Values lower_histogram_bins_tensor(Call& c) {
  const Samples samples = samples_of(c, /*flat=*/true);
  const Value edges = c.tensor("bins");
  expect(edges.rank() == 1 && edges.dtype() == samples.points.dtype(), "expected edges");
  return {count_points(c, samples, {edges}), edges};
}

Values lower_histogramdd_bin_edges(Call& c) {
  return edges_of(c, samples_of(c, /*flat=*/false).points, c.ints("bins"));
}

Values lower_histogramdd_from_bin_cts(Call& c) {
  const Samples samples = samples_of(c, /*flat=*/false);
  return {count_points(c, samples, edges_of(c, samples.points, c.ints("bins")))};
}

Values lower_histogramdd_from_bin_tensors(Call& c) {
  const Samples samples = samples_of(c, /*flat=*/false);
  const Values edges = c.tensors("bins");
  expect(static_cast<int64_t>(edges.size()) == samples.points.dim(1), "expected edges a dimension");
  for (const Value& edge : edges) {
    expect(edge.rank() == 1 && edge.dtype() == samples.points.dtype(), "expected edges");
  }
  return {count_points(c, samples, edges)};
}

// The caller has found the largest value and made `minlength` the number of bins.
Values lower_bincount(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const Dims bins = {c.integer("minlength")};
  if (const Value weights = c.optional_tensor("weights")) {
    const DType t = weights.dtype() == DType::kF32 ? DType::kF32 : DType::kF64;
    return {put_rows(full(b, 0, t, bins), plain_index(self, bins[0]), cast(weights, t), 0,
                     Combine::kAdd)};
  }
  return {cast(put_rows(full(b, 0, DType::kS32, bins), plain_index(self, bins[0]),
                        full(b, 1, DType::kS32, self.dims()), 0, Combine::kAdd),
               DType::kS64)};
}

}  // namespace

void add_histogram(Entries& t) {
  t.push_back({.name = "histc", .lower = lower_histc});
  t.push_back({.name = "histogram.bin_ct", .lower = lower_histogram_bin_ct, .no_meta = true});
  t.push_back(
      {.name = "histogram.bins_tensor", .lower = lower_histogram_bins_tensor, .no_meta = true});
  t.push_back(
      {.name = "_histogramdd_bin_edges", .lower = lower_histogramdd_bin_edges, .no_meta = true});
  t.push_back({.name = "_histogramdd_from_bin_cts",
               .lower = lower_histogramdd_from_bin_cts,
               .no_meta = true});
  t.push_back({.name = "_histogramdd_from_bin_tensors",
               .lower = lower_histogramdd_from_bin_tensors,
               .no_meta = true});
  t.push_back({.name = "bincount", .lower = lower_bincount, .internal = true, .no_meta = true});
}

}  // namespace torch_tpu::ops
