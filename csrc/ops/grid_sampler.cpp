// grid_sampler_2d and grid_sampler_3d with backwards. A sample is a weighted sum of the grid
// corners around it; all corners of all points are read by one gather, and their gradients added by
// one scatter.
#include <vector>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

enum Interpolation : int64_t { kBilinear = 0, kNearest = 1, kBicubic = 2 };
enum Padding : int64_t { kZeros = 0, kBorder = 1, kReflection = 2 };

// A sampling position along one dimension, in input pixels, and its derivative by the grid value.
struct Coordinate {
  Value at;     // [N, points]
  Value slope;  // [N, points]
};

struct Sampler {
  Builder& b;
  int64_t interpolation, padding;
  bool align_corners;
  Dims sizes;                           // of the input's space
  std::vector<Coordinate> coordinates;  // beside `sizes`
};

Value clip(const Value& x, int64_t size) {
  Builder& b = x.builder();
  return nan_minimum(nan_maximum(x, zeros_like(x)), b.like(x, size - 1));
}

Coordinate clipped(const Coordinate& c, int64_t size) {
  Builder& b = c.at.builder();
  const Value inside = b.and_(b.gt(c.at, zeros_like(c.at)), b.lt(c.at, b.like(c.at, size - 1)));
  return {clip(c.at, size), b.select(inside, c.slope, zeros_like(c.slope))};
}

// Mirrors at `low` and `high` until inside.
Coordinate reflected(const Coordinate& c, double low, double high) {
  Builder& b = c.at.builder();
  if (low == high) return {zeros_like(c.at), zeros_like(c.slope)};
  const double span = high - low;
  const Value from_low = c.at - low;
  const Value distance = b.abs(from_low);
  const Value spans = b.like(distance, span);
  const Value extra = b.remainder(distance, spans);
  const Value flips = b.floor(distance / span);
  const Value even = b.eq(b.remainder(flips, b.like(flips, 2)), zeros_like(flips));
  const Value sign = b.select(b.lt(from_low, zeros_like(from_low)), -c.slope, c.slope);
  return {b.select(even, extra, spans - extra) + low, b.select(even, sign, -sign)};
}

Coordinate padded(const Sampler& s, const Coordinate& c, int64_t size) {
  switch (s.padding) {
    case kBorder:
      return clipped(c, size);
    case kReflection:
      return clipped(s.align_corners ? reflected(c, 0, double(size - 1))
                                     : reflected(c, -0.5, double(size) - 0.5),
                     size);
    default:
      return c;
  }
}

Sampler sampler_of(Call& c, const Value& grid, Dims sizes) {
  Sampler s{c.b,
            c.integer("interpolation_mode"),
            c.integer("padding_mode"),
            c.flag("align_corners"),
            std::move(sizes),
            {}};
  const int64_t n = static_cast<int64_t>(s.sizes.size());
  const Value points = c.b.reshape(grid, {grid.dim(0), grid.numel() / (grid.dim(0) * n), n});
  for (int64_t i = 0; i < n; ++i) {
    // The grid counts dimensions from the last one.
    const Value raw =
        c.b.reshape(c.b.slice_dim(points, 2, n - 1 - i, n - i), {points.dim(0), points.dim(1)});
    const int64_t size = s.sizes[i];
    Coordinate at;
    at.at = s.align_corners ? (raw + 1.0) * 0.5 * double(size - 1)
                            : ((raw + 1.0) * double(size) - 1.0) * 0.5;
    at.slope = c.b.like(raw, s.align_corners ? double(size - 1) / 2 : double(size) / 2);
    // Cubic interpolation pads each corner by itself.
    s.coordinates.push_back(s.interpolation == kBicubic ? at : padded(s, at, size));
  }
  return s;
}

// The stops of a dimension around each point: whole-numbered positions, their weights, and the
// derivatives of these by the grid value. All are [N, stops, points].
struct Stops {
  Value at, weight, slope;
};

// Keys' kernel and its derivative at a distance that lies in [0, 1] (near) or [1, 2].
Value cubic(const Value& x, bool near) {
  const double a = -0.75;
  if (near) return ((x * (a + 2) - (a + 3)) * x) * x + 1.0;
  return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a;
}

Value cubic_slope(const Value& x, bool near) {
  const double a = -0.75;
  if (near) return (x * (3 * (a + 2)) - 2 * (a + 3)) * x;
  return (x * (3 * a) - 10 * a) * x + 8 * a;
}

Value stack(const Values& stops) {
  Builder& b = stops[0].builder();
  Values parts;
  for (const Value& stop : stops) parts.push_back(b.reshape(stop, {stop.dim(0), 1, stop.dim(1)}));
  return parts.size() == 1 ? parts[0] : b.concatenate(parts, 1);
}

Stops stops_of(const Sampler& s, size_t i) {
  Builder& b = s.b;
  const Coordinate& c = s.coordinates[i];
  if (s.interpolation == kNearest) {
    const Value at = stack({b.round_nearest_even(c.at)});
    return {at, ones_like(at), zeros_like(at)};
  }
  const Value low = b.floor(c.at);
  const Value t = c.at - low;
  if (s.interpolation == kBilinear) {
    return {stack({low, low + 1.0}), stack({1.0 - t, t}), stack({-c.slope, c.slope})};
  }
  Values at, weights, slopes;
  for (int k = -1; k <= 2; ++k) {
    const bool near = k == 0 || k == 1;
    const bool before = k <= 0;
    const Value distance = before ? t - k : k - t;
    const Value slope = cubic_slope(distance, near) * c.slope;
    at.push_back(low + k);
    weights.push_back(cubic(distance, near));
    slopes.push_back(before ? slope : -slope);
  }
  const Value stops = stack(at);
  return {padded(s, {stops, stops}, s.sizes[i]).at, stack(weights), stack(slopes)};
}

// All combinations of stops: [N, corners, points].
struct Corners {
  Value index;    // s32, into the plane
  Value inside;   // false: reads as zero
  Value weight;   // zero outside
  Values slopes;  // derivative of the weight by the grid value of each dimension, zero outside
};

Corners corners_of(const Sampler& s) {
  Builder& b = s.b;
  const size_t n = s.sizes.size();
  std::vector<Stops> stops;
  Dims full_dims = {s.coordinates[0].at.dim(0)};
  int64_t count = 1;
  for (size_t i = 0; i < n; ++i) {
    stops.push_back(stops_of(s, i));
    full_dims.push_back(stops[i].at.dim(1));
    count *= stops[i].at.dim(1);
  }
  full_dims.push_back(s.coordinates[0].at.dim(1));
  const Dims dims = {full_dims.front(), count, full_dims.back()};
  const auto spread = [&](const Value& x, size_t i) {
    const Dims map = {0, static_cast<int64_t>(i) + 1, static_cast<int64_t>(n) + 1};
    return b.reshape(b.broadcast_in_dim(x, full_dims, map), dims);
  };
  Corners c;
  Values weights;
  for (size_t i = 0; i < n; ++i) {
    const Value at = stops[i].at;
    const Value here =
        spread(b.and_(b.ge(at, zeros_like(at)), b.lt(at, b.like(at, s.sizes[i]))), i);
    c.inside = c.inside ? b.and_(c.inside, here) : here;
    const Value step = spread(b.convert(clip(at, s.sizes[i]), DType::kS32), i);
    c.index = c.index ? c.index * s.sizes[i] + step : step;
    weights.push_back(spread(stops[i].weight, i));
    c.weight = c.weight ? c.weight * weights[i] : weights[i];
  }
  const Value zero = zeros_like(c.weight);
  c.weight = b.select(c.inside, c.weight, zero);
  for (size_t i = 0; i < n; ++i) {
    Value slope = spread(stops[i].slope, i);
    for (size_t k = 0; k < n; ++k) {
      if (k != i) slope = slope * weights[k];
    }
    c.slopes.push_back(b.select(c.inside, slope, zero));
  }
  return c;
}

Value flat_space(const Value& x) {
  const int64_t outer = x.dim(0) * x.dim(1);
  return x.builder().reshape(x, {x.dim(0), x.dim(1), outer == 0 ? 0 : x.numel() / outer});
}

// The corners' values [N, C, corners, points] from planes [N, C, plane]; zero outside.
Value read_corners(const Value& planes, const Corners& c) {
  Builder& b = planes.builder();
  stablehlo::GatherDims dims;
  dims.offset_dims = {1};
  dims.collapsed_slice_dims = dims.start_index_map = {2};
  dims.operand_batching_dims = dims.start_indices_batching_dims = {0};
  dims.index_vector_dim = 2;
  const Value index = b.reshape(c.index, {c.index.dim(0), c.index.dim(1) * c.index.dim(2)});
  const Value flat = b.gather(planes, index, dims, {1, planes.dim(1), 1});
  const Value read =
      b.reshape(flat, {planes.dim(0), planes.dim(1), c.index.dim(1), c.index.dim(2)});
  const Value inside = b.broadcast_in_dim(c.inside, read.dims(), {0, 2, 3});
  return b.select(inside, read, zeros_like(read));
}

Values lower_grid_sampler(Call& c) {
  if (c.out().numel() == 0) return {full(c.b, 0, c.out().dtype, c.out().dims)};
  const DType t = opmath(c.dtype("input"));
  const Value input = cast(c.tensor("input"), t);
  const Value grid = cast(c.tensor("grid"), t);
  const Sampler s = sampler_of(c, grid, Dims(input.dims().begin() + 2, input.dims().end()));
  const Corners corners = corners_of(s);
  const Value read = read_corners(flat_space(input), corners);
  const Value weight = c.b.broadcast_in_dim(corners.weight, read.dims(), {0, 2, 3});
  return {c.b.reshape(reduce_sum(read * weight, {2}), c.out().dims)};
}

Values lower_grid_sampler_backward(Call& c) {
  Builder& b = c.b;
  const DType t = opmath(c.dtype("input"));
  const Value input = cast(c.tensor("input"), t);
  const Value grid = cast(c.tensor("grid"), t);
  const std::vector<bool> mask = c.flags("output_mask");
  Values grads = {mask[0] ? zeros_like(input) : Value(), zeros_like(grid)};
  if (input.numel() == 0 || grid.numel() == 0) return grads;
  const Sampler s = sampler_of(c, grid, Dims(input.dims().begin() + 2, input.dims().end()));
  const Corners corners = corners_of(s);
  const Value raw = flat_space(cast(c.tensor("grad_output"), t));
  const Dims all = {raw.dim(0), raw.dim(1), corners.index.dim(1), raw.dim(2)};
  const Value grad = b.broadcast_in_dim(raw, all, {0, 1, 3});
  const auto over_channels = [&](const Value& x) { return b.broadcast_in_dim(x, all, {0, 2, 3}); };
  if (mask[0]) {
    const Dims flat = {all[0], all[1], all[2] * all[3]};
    const Value share = b.reshape(grad * over_channels(corners.weight), flat);
    const Value index = b.reshape(over_channels(corners.index), flat);
    const Value sum = put_along(flat_space(grads[0]), index, share, 2, Combine::kAdd);
    grads[0] = b.reshape(sum, input.dims());
  }
  if (s.interpolation != kNearest) {
    const Value along = reduce_sum(read_corners(flat_space(input), corners) * grad, {1});
    Values columns;
    for (size_t i = s.sizes.size(); i-- > 0;) {
      const Value slope = reduce_sum(along * corners.slopes[i], {1});
      columns.push_back(b.reshape(slope, {slope.dim(0), slope.dim(1), 1}));
    }
    grads[1] = b.reshape(b.concatenate(columns, 2), grid.dims());
  }
  return grads;
}

}  // namespace

void add_grid_sampler(Entries& t) {
  t.push_back({.name = "grid_sampler_2d", .lower = lower_grid_sampler});
  t.push_back({.name = "grid_sampler_3d", .lower = lower_grid_sampler});
  t.push_back({.name = "grid_sampler_2d_backward", .lower = lower_grid_sampler_backward});
  t.push_back({.name = "grid_sampler_3d_backward", .lower = lower_grid_sampler_backward});
}

}  // namespace torch_tpu::ops
