// grid_sampler_2d and grid_sampler_3d with backwards. A sample is a weighted sum of a few grid
// corners; each corner is gathered with its bounds check, and the gradients walk the same corners.
#include <cmath>
#include <functional>
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
  return b.minimum(b.maximum(x, zeros_like(x)), b.like(x, double(size - 1)));
}

Coordinate clipped(const Coordinate& c, int64_t size) {
  Builder& b = c.at.builder();
  const Value inside =
      b.and_(b.gt(c.at, zeros_like(c.at)), b.lt(c.at, b.like(c.at, double(size - 1))));
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

// A corner along one dimension: whole-numbered position, weight, and the weight's derivative.
struct Stop {
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

std::vector<Stop> stops_of(const Sampler& s, size_t i) {
  Builder& b = s.b;
  const Coordinate& c = s.coordinates[i];
  if (s.interpolation == kNearest) {
    return {{b.round_nearest_even(c.at), ones_like(c.at), zeros_like(c.at)}};
  }
  const Value low = b.floor(c.at);
  const Value t = c.at - low;
  if (s.interpolation == kBilinear) {
    return {{low, 1.0 - t, -c.slope}, {low + 1.0, t, c.slope}};
  }
  std::vector<Stop> stops;
  for (int k = -1; k <= 2; ++k) {
    const bool near = k == 0 || k == 1;
    const bool before = k <= 0;
    const Value distance = before ? t - double(k) : double(k) - t;
    const Value slope = cubic_slope(distance, near) * c.slope;
    const Value at = padded(s, {low + double(k), c.slope}, s.sizes[i]).at;
    stops.push_back({at, cubic(distance, near), before ? slope : -slope});
  }
  return stops;
}

struct Corner {
  Value index;    // [N, points], s32, into the plane
  Value weight;   // [N, points], zero outside the input
  Values slopes;  // derivative of the weight by the grid value of each dimension
};

void for_each_corner(const Sampler& s, const std::function<void(const Corner&)>& visit) {
  Builder& b = s.b;
  std::vector<std::vector<Stop>> stops;
  for (size_t i = 0; i < s.sizes.size(); ++i) stops.push_back(stops_of(s, i));
  std::vector<size_t> at(stops.size(), 0);
  while (true) {
    Corner corner;
    Value inside;
    for (size_t i = 0; i < stops.size(); ++i) {
      const Stop& stop = stops[i][at[i]];
      const Value here = b.and_(b.ge(stop.at, zeros_like(stop.at)),
                                b.lt(stop.at, b.like(stop.at, double(s.sizes[i]))));
      inside = inside ? b.and_(inside, here) : here;
      const Value step = b.convert(clip(stop.at, s.sizes[i]), DType::kS32);
      corner.index = corner.index ? corner.index * double(s.sizes[i]) + step : step;
      corner.weight = corner.weight ? corner.weight * stop.weight : stop.weight;
    }
    const Value zero = zeros_like(corner.weight);
    corner.weight = b.select(inside, corner.weight, zero);
    for (size_t i = 0; i < stops.size(); ++i) {
      Value slope = stops[i][at[i]].slope;
      for (size_t k = 0; k < stops.size(); ++k) {
        if (k != i) slope = slope * stops[k][at[k]].weight;
      }
      corner.slopes.push_back(b.select(inside, slope, zero));
    }
    visit(corner);
    size_t i = 0;
    while (i < at.size() && ++at[i] == stops[i].size()) at[i++] = 0;
    if (i == at.size()) return;
  }
}

// x [N, C, plane] at index [N, points]: [N, C, points].
Value gather_plane(const Value& x, const Value& index) {
  stablehlo::GatherDims dims;
  dims.offset_dims = {1};
  dims.collapsed_slice_dims = dims.start_index_map = {2};
  dims.operand_batching_dims = dims.start_indices_batching_dims = {0};
  dims.index_vector_dim = 2;
  return x.builder().gather(x, index, dims, {1, x.dim(1), 1});
}

Value over_channels(const Value& x, const Dims& dims) {
  return x.builder().broadcast_in_dim(x, dims, {0, 2});
}

Value flat_space(const Value& x) {
  const int64_t outer = x.dim(0) * x.dim(1);
  return x.builder().reshape(x, {x.dim(0), x.dim(1), outer == 0 ? 0 : x.numel() / outer});
}

Values lower_grid_sampler(Call& c) {
  if (c.out().numel() == 0) return {full(c.b, 0, c.out().dtype, c.out().dims)};
  const DType t = opmath(c.dtype("input"));
  const Value input = cast(c.tensor("input"), t);
  const Value grid = cast(c.tensor("grid"), t);
  const Value planes = flat_space(input);
  const Sampler s = sampler_of(c, grid, Dims(input.dims().begin() + 2, input.dims().end()));
  Value sum;
  for_each_corner(s, [&](const Corner& corner) {
    const Value value = gather_plane(planes, corner.index);
    // Outside, what was read instead must not turn a zero weight into NaN.
    const Value weight = over_channels(corner.weight, value.dims());
    const Value term =
        c.b.select(c.b.eq(weight, zeros_like(weight)), zeros_like(value), value * weight);
    sum = sum ? sum + term : term;
  });
  return {c.b.reshape(sum, c.out().dims)};
}

Values lower_grid_sampler_backward(Call& c) {
  const DType t = opmath(c.dtype("input"));
  const Value input = cast(c.tensor("input"), t);
  const Value grid = cast(c.tensor("grid"), t);
  const std::vector<bool> mask = c.flags("output_mask");
  Values grads = {mask[0] ? zeros_like(input) : Value(), zeros_like(grid)};
  if (input.numel() == 0 || grid.numel() == 0) return grads;
  const Value grad = flat_space(cast(c.tensor("grad_output"), t));
  const Value planes = flat_space(input);
  const Sampler s = sampler_of(c, grid, Dims(input.dims().begin() + 2, input.dims().end()));
  const size_t n = s.sizes.size();
  Value input_grad = mask[0] ? flat_space(grads[0]) : Value();
  Values slopes(n);
  for_each_corner(s, [&](const Corner& corner) {
    if (mask[0]) {
      const Value share = grad * over_channels(corner.weight, grad.dims());
      input_grad =
          put_along(input_grad, over_channels(corner.index, grad.dims()), share, 2, Combine::kAdd);
    }
    if (s.interpolation == kNearest) return;
    const Value along = reduce_sum(gather_plane(planes, corner.index) * grad, {1});
    for (size_t i = 0; i < n; ++i) {
      const Value term = along * corner.slopes[i];
      slopes[i] = slopes[i] ? slopes[i] + term : term;
    }
  });
  if (mask[0]) grads[0] = c.b.reshape(input_grad, input.dims());
  if (s.interpolation != kNearest) {
    Values columns;
    for (size_t i = n; i-- > 0;) {
      columns.push_back(c.b.reshape(slopes[i], {slopes[i].dim(0), slopes[i].dim(1), 1}));
    }
    grads[1] = c.b.reshape(c.b.concatenate(columns, 2), grid.dims());
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
