// Max pooling with indices, plain and adaptive, its backward, and unpooling. The maximum goes one
// dimension at a time: a tap is a shifted slice, and indices are positions in the input's plane.
// As on CPU, the first of equal values wins and the last NaN beats everything.
#include "csrc/ops/pool.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "csrc/ops/band.h"
#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"

namespace torch_tpu::ops {
namespace {

// Windows longer than this are reduced in one op instead of tap by tap.
constexpr int64_t kMaxTaps = 32;
// Up to so many outputs may cover an input for the backward to collect them; else it scatters.
constexpr int64_t kMaxCovering = 4;

Value along(const Value& line, const Dims& dims, int64_t dim) {
  return line.builder().broadcast_in_dim(line, dims, {dim});
}

// The maximum over long windows along a dimension of padded operands, in which index -1 marks
// padding.
Best reduce_windows(const Best& padded, const PoolDim& d) {
  Builder& b = padded.value.builder();
  stablehlo::Window window;
  window.sizes = window.strides = window.window_dilation = Dims(padded.value.rank(), 1);
  window.sizes[d.dim] = d.kernel;
  window.strides[d.dim] = d.stride;
  window.window_dilation[d.dim] = d.dilation;
  const Values inits = {b.lowest(padded.value.dtype()), b.scalar(-1, padded.index.dtype())};
  // Order does not matter to this body: ties go by index.
  const Values best =
      b.reduce_window({padded.value, padded.index}, inits, window, [&](const Values& v) -> Values {
        const Value zero = zeros_like(v[1]);
        const Value nan0 = b.ne(v[0], v[0]), nan2 = b.ne(v[2], v[2]);
        const Value later = b.gt(v[3], v[1]);
        const Value greater = b.or_(b.gt(v[2], v[0]), b.and_(b.eq(v[2], v[0]), b.not_(later)));
        Value take = b.select(nan2, b.or_(b.not_(nan0), later), b.and_(greater, b.not_(nan0)));
        take = b.and_(b.ge(v[3], zero), b.or_(take, b.lt(v[1], zero)));
        return {b.select(take, v[2], v[0]), b.select(take, v[3], v[1])};
      });
  return {best[0], best[1]};
}

// [planes, elements of the last n dimensions]
Value planes(const Value& x, int64_t n) {
  const Dims last(x.dims().end() - n, x.dims().end());
  const int64_t size = stablehlo::product(last);
  const Dims first(x.dims().begin(), x.dims().end() - n);
  return x.builder().reshape(x, {stablehlo::product(first), size});
}

Value pad_dim(const Value& x, int64_t dim, int64_t low, int64_t high, const Value& fill) {
  if (low == 0 && high == 0) return x;
  Dims lows(x.rank(), 0), highs(x.rank(), 0);
  lows[dim] = low;
  highs[dim] = high;
  return x.builder().pad(x, fill, lows, highs);
}

// The first position inside the input of each window, in elements of the plane: it stands for a
// window of nothing but -inf. Constant; broadcast along the pooled dimension of `dims`.
Value first_positions(Builder& b, const PoolDim& d, int64_t plane_stride, DType t,
                      const Dims& dims) {
  std::vector<int64_t> first;
  for (int64_t o = 0; o < d.out; ++o) {
    int64_t at = o * d.stride - d.padding;
    while (at < 0) at += d.dilation;
    first.push_back(at * plane_stride);
  }
  return along(b.ints(first, Type(t, {d.out})), dims, d.dim);
}

// Pools one dimension. Indices become positions along it, in elements of the plane, plus those
// found in the inner dimensions. `first` does the same for the windows' first positions.
Best pool_dim(const Best& best, Value& first, const PoolDim& d, int64_t plane_stride) {
  Builder& b = best.value.builder();
  const DType t = best.index.dtype();
  const int64_t high = std::max<int64_t>(0, (d.out - 1) * d.stride + d.reach() - d.in - d.padding);
  const bool padded = d.padding > 0 || high > 0;
  Dims dims = best.value.dims();
  dims[d.dim] = d.out;
  if (first) {
    // What was found in the inner dimensions is the same all along this one.
    first = b.broadcast_to(b.slice_dim(first, d.dim, 0, 1), dims);
    first = first_positions(b, d, plane_stride, t, dims) + first;
  }
  const Value values = pad_dim(best.value, d.dim, d.padding, high, b.lowest(best.value.dtype()));
  if (d.kernel > kMaxTaps) {
    const Value here = b.iota(best.index.type(), d.dim) * plane_stride + best.index;
    return reduce_windows({values, pad_dim(here, d.dim, d.padding, high, b.scalar(-1, t))}, d);
  }
  const Value inner = pad_dim(best.index, d.dim, d.padding, high, b.scalar(0, t));
  const auto pick = [&](const Value& x, int64_t offset) {
    return b.slice_dim(x, d.dim, offset, offset + (d.out - 1) * d.stride + 1, d.stride);
  };
  Best result;
  if (padded) {
    result = {b.broadcast_in_dim(b.lowest(best.value.dtype()), dims, {}), first};
  }
  for (int64_t k = 0; k < d.kernel; ++k) {
    const int64_t offset = k * d.dilation;
    const Value at = b.iota(Type(t, {d.out}), 0) * d.stride + (offset - d.padding);
    result = better(result, {pick(values, offset),
                             along(at * plane_stride, dims, d.dim) + pick(inner, offset)});
  }
  return result;
}

// Uneven windows: the taps are gathered. Short windows repeat their last element, which changes
// nothing.
Best adaptive_dim(const Best& best, const PoolDim& d, int64_t plane_stride) {
  Builder& b = best.value.builder();
  const DType t = best.index.dtype();
  const Band windows = adaptive_average(d.in, d.out);
  size_t taps = 0;
  for (const Band::Row& row : windows.rows) taps = std::max(taps, row.weights.size());
  Dims dims = best.value.dims();
  dims[d.dim] = d.out;
  Best result;
  for (int64_t k = 0; k < static_cast<int64_t>(taps); ++k) {
    std::vector<int64_t> positions;
    for (const Band::Row& row : windows.rows) {
      const int64_t size = static_cast<int64_t>(row.weights.size());
      positions.push_back(row.start + std::min(k, size - 1));
    }
    const Value at = b.ints(positions, Type(DType::kS32, {d.out}));
    const Value index = along(b.convert(at, t) * plane_stride, dims, d.dim);
    result = better(result,
                    {take_rows(best.value, at, d.dim), index + take_rows(best.index, at, d.dim)});
  }
  return result;
}

int64_t plane_of(const std::vector<PoolDim>& pools) {
  int64_t plane = 1;
  for (const PoolDim& d : pools) plane *= d.in;
  return plane;
}

// Innermost dimension first, so that ties are settled in memory order.
Values max_pool(const Value& x, const std::vector<PoolDim>& pools, bool adaptive) {
  Builder& b = x.builder();
  Best best = {x, b.splat(0, Type(index_dtype(plane_of(pools)), x.dims()))};
  Value first = adaptive ? Value() : best.index;
  std::vector<std::pair<int64_t, int64_t>> untouched;  // dimension and its stride in the plane
  int64_t plane_stride = 1;
  for (auto d = pools.rbegin(); d != pools.rend(); ++d) {
    PoolDim even = *d;
    even.kernel = even.stride = d->in / d->out;
    if (adaptive && d->in == d->out) {
      untouched.emplace_back(d->dim, plane_stride);
    } else if (!adaptive) {
      best = pool_dim(best, first, *d, plane_stride);
    } else if (d->in % d->out == 0) {
      best = pool_dim(best, first, even, plane_stride);
    } else {
      best = adaptive_dim(best, *d, plane_stride);
    }
    plane_stride *= d->in;
  }
  // Only now: XLA:CPU gathers an iota wrongly when it fuses it with a selection.
  for (const auto& [dim, stride] : untouched) {
    best.index = best.index + b.iota(best.index.type(), dim) * stride;
  }
  return {best.value, best.index};
}

template <int n>
Values lower_max_pool(Call& c) {
  const Value x = c.tensor("self");
  if (c.out().numel() == 0) {
    return {full(c.b, 0, x.dtype(), c.out(0).dims), full(c.b, 0, DType::kS64, c.out(1).dims)};
  }
  return max_pool(x, pool_dims(c, x.dims(), c.out().dims, n), false);
}

std::vector<PoolDim> adaptive_dims(const Dims& in, const Dims& out, int64_t n) {
  std::vector<PoolDim> pools;
  for (int64_t i = static_cast<int64_t>(in.size()) - n; i < static_cast<int64_t>(in.size()); ++i) {
    PoolDim d;
    d.dim = i;
    d.in = in[i];
    d.out = out[i];
    pools.push_back(d);
  }
  return pools;
}

template <int n>
Values lower_adaptive_max_pool(Call& c) {
  const Value x = c.tensor("self");
  if (!is_float(x.dtype())) throw std::invalid_argument("[adaptive_max_pool] expected floats");
  if (c.out().numel() == 0) {
    return {full(c.b, 0, x.dtype(), c.out(0).dims), full(c.b, 0, DType::kS64, c.out(1).dims)};
  }
  return max_pool(x, adaptive_dims(x.dims(), c.out().dims, n), true);
}

// --- backward -----------------------------------------------------------------------------------

// Every input looks at the outputs whose windows cover it and takes the gradients that point at it:
// no scatter, which a TPU does one element at a time.
Value collect(const Value& grad, const Value& index, const Dims& in,
              const std::vector<PoolDim>& pools) {
  Builder& b = grad.builder();
  const DType wide = opmath(grad.dtype());
  const Value at = b.convert(index, index_dtype(plane_of(pools)));
  const Type type(at.dtype(), in);
  Value here = b.splat(0, type);
  int64_t plane_stride = 1;
  for (auto d = pools.rbegin(); d != pools.rend(); ++d) {
    here = here + b.iota(type, d->dim) * plane_stride;
    plane_stride *= d->in;
  }
  Value sum;
  const std::function<void(size_t, Value, Value)> visit = [&](size_t i, Value g, Value p) {
    if (i == pools.size()) {
      const Value term = b.select(b.eq(p, here), b.convert(g, wide), full(b, 0, wide, in));
      sum = sum ? sum + term : term;
      return;
    }
    for (int64_t back = 0; back < pools[i].overlap(); ++back) {
      visit(i + 1, covering_output(g, pools[i], back, 0), covering_output(p, pools[i], back, -1));
    }
  };
  visit(0, grad, at);
  return sum;
}

Value max_pool_backward(const Value& grad, const Value& index, const Dims& in,
                        const std::vector<PoolDim>& pools) {
  if (grad.numel() == 0 || stablehlo::product(in) == 0) {
    return full(grad.builder(), 0, grad.dtype(), in);
  }
  int64_t covering = 1;
  for (const PoolDim& d : pools) covering *= d.overlap();
  if (covering <= kMaxCovering) return collect(grad, index, in, pools);
  return scatter_planes(grad, index, in, static_cast<int64_t>(pools.size()), Combine::kAdd);
}

template <int n>
Values lower_max_pool_backward(Call& c) {
  const Value grad = c.tensor("grad_output");
  const Dims in = c.out().dims;
  return {max_pool_backward(grad, c.tensor("indices"), in, pool_dims(c, in, grad.dims(), n))};
}

template <int n>
Values lower_adaptive_max_pool_backward(Call& c) {
  const Value grad = c.tensor("grad_output");
  const Value index = c.tensor("indices");
  const Dims in = c.out().dims;
  if (grad.dims() != index.dims()) {
    throw std::invalid_argument("[adaptive_max_pool] expected an index for each gradient");
  }
  if (grad.numel() == 0) return {full(c.b, 0, grad.dtype(), in)};
  std::vector<PoolDim> pools = adaptive_dims(in, grad.dims(), n);
  bool even = true;
  for (PoolDim& d : pools) {
    even = even && d.in % d.out == 0;
    d.kernel = d.stride = d.in / d.out;
  }
  return {even ? max_pool_backward(grad, index, in, pools)
               : scatter_planes(grad, index, in, n, Combine::kAdd)};
}

// --- unpooling ----------------------------------------------------------------------------------

template <int n>
Values lower_max_unpool(Call& c) {
  const Value index = c.tensor("indices");
  const Dims out = c.out().dims;
  const Dims last(out.end() - n, out.end());
  std::string sizes;
  for (int64_t size : last) sizes += (sizes.empty() ? "" : "x") + std::to_string(size);
  c.check_range(index, 0, stablehlo::product(last),
                n == 2 ? "Found an invalid max index: {} (output volumes are of size " + sizes
                       : "found an invalid max index {} (output volumes are of size " + sizes);
  if (index.numel() == 0) return {full(c.b, 0, c.out().dtype, out)};
  return {scatter_planes(c.tensor("self"), index, out, n, Combine::kSet)};
}

}  // namespace

Best better(const Best& best, const Best& tap) {
  if (!best.value) return tap;
  Builder& b = tap.value.builder();
  Value take = b.gt(tap.value, best.value);
  if (is_float(tap.value.dtype())) take = b.or_(take, b.ne(tap.value, tap.value));
  return {b.select(take, tap.value, best.value), b.select(take, tap.index, best.index)};
}

DType index_dtype(int64_t plane) { return plane < (int64_t{1} << 31) ? DType::kS32 : DType::kS64; }

Value scatter_planes(const Value& x, const Value& index, const Dims& out, int64_t n, Combine how) {
  Builder& b = x.builder();
  const Dims last(out.end() - n, out.end());
  const int64_t plane = stablehlo::product(last);
  const Value flat = planes(x, n);
  const Value zero = full(b, 0, x.dtype(), {flat.dim(0), plane});
  const Value at = plain_index(planes(index, n), plane);
  return b.reshape(put_along(zero, at, flat, 1, how), out);
}

std::vector<PoolDim> pool_dims(Call& c, const Dims& in, const Dims& out, int64_t n) {
  // One number stands for all dimensions, an empty stride for the kernel's size.
  const auto get = [&](const Dims& values, int64_t i, int64_t otherwise) {
    if (values.empty()) return otherwise;
    return values.size() == 1 ? values[0] : values.at(i);
  };
  const Dims kernel = c.ints("kernel_size"), stride = c.ints("stride"), padding = c.ints("padding");
  const Dims dilation = c.has("dilation") ? c.ints("dilation") : Dims{};
  const int64_t first = static_cast<int64_t>(in.size()) - n;
  std::vector<PoolDim> pools;
  for (int64_t i = 0; i < n; ++i) {
    PoolDim d;
    d.dim = first + i;
    d.in = in[d.dim];
    d.out = out[d.dim];
    d.kernel = get(kernel, i, 1);
    d.stride = get(stride, i, d.kernel);
    d.padding = get(padding, i, 0);
    d.dilation = get(dilation, i, 1);
    pools.push_back(d);
  }
  return pools;
}

Value covering_output(const Value& x, const PoolDim& d, int64_t back, double fill) {
  Builder& b = x.builder();
  const int64_t cells = (d.in - 1 + d.padding) / d.stride + 1;
  const Value shifted = pad_dim(x, d.dim, back, cells - d.out - back, b.scalar(fill, x.dtype()));
  return b.slice_dim(repeat_elements(shifted, d.dim, d.stride), d.dim, d.padding, d.padding + d.in);
}

void add_pool(Entries& t) {
  t.push_back({.name = "max_pool2d_with_indices", .lower = lower_max_pool<2>});
  t.push_back({.name = "max_pool3d_with_indices", .lower = lower_max_pool<3>});
  t.push_back({.name = "max_pool2d_with_indices_backward", .lower = lower_max_pool_backward<2>});
  t.push_back({.name = "max_pool3d_with_indices_backward", .lower = lower_max_pool_backward<3>});
  t.push_back({.name = "adaptive_max_pool2d", .lower = lower_adaptive_max_pool<2>});
  t.push_back({.name = "adaptive_max_pool3d", .lower = lower_adaptive_max_pool<3>});
  t.push_back(
      {.name = "adaptive_max_pool2d_backward", .lower = lower_adaptive_max_pool_backward<2>});
  t.push_back(
      {.name = "adaptive_max_pool3d_backward", .lower = lower_adaptive_max_pool_backward<3>});
  t.push_back({.name = "max_unpool2d", .lower = lower_max_unpool<2>});
  t.push_back({.name = "max_unpool3d", .lower = lower_max_unpool<3>});
  add_avg_pool(t);
  add_fractional_pool(t);
}

}  // namespace torch_tpu::ops
