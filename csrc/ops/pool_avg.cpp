// Average pooling, plain and adaptive, with backwards. Sums go one dimension at a time, which is
// much cheaper than a window over all of them; divisors are constants.
#include <algorithm>
#include <stdexcept>

#include "csrc/ops/band.h"
#include "csrc/ops/helpers.h"
#include "csrc/ops/pool.h"

namespace torch_tpu::ops {
namespace {

// Sums of `size` neighbours along `dim`, `stride` apart; `low` zeros before x, and as many after it
// as `out` windows need.
Value window_sums(Value x, int64_t dim, int64_t size, int64_t stride, int64_t low, int64_t out) {
  Builder& b = x.builder();
  const int64_t in = x.dim(dim);
  if (out == 1 && low == 0 && size >= in) return reduce_sum(x, {dim}, true);
  if (size == 1 && low == 0) return b.slice_dim(x, dim, 0, (out - 1) * stride + 1, stride);
  stablehlo::Window window;
  window.sizes = window.strides = Dims(x.rank(), 1);
  window.padding_low = window.padding_high = Dims(x.rank(), 0);
  window.sizes[dim] = size;
  window.strides[dim] = stride;
  const int64_t high = (out - 1) * stride + size - in - low;
  if (low < 0 || high < 0) {
    x = b.slice_dim(x, dim, std::max<int64_t>(0, -low), in + std::min<int64_t>(0, high));
  }
  window.padding_low[dim] = std::max<int64_t>(0, low);
  window.padding_high[dim] = std::max<int64_t>(0, high);
  return b.reduce_window(x, b.scalar(0, x.dtype()), window, Reduction::kAdd);
}

// How many elements the windows along a dimension count.
std::vector<double> counts(const PoolDim& d, bool include_padding) {
  std::vector<double> out;
  for (int64_t o = 0; o < d.out; ++o) {
    int64_t start = o * d.stride - d.padding;
    int64_t end = std::min(start + d.kernel, d.in + d.padding);
    if (!include_padding) {
      start = std::max<int64_t>(start, 0);
      end = std::min(end, d.in);
    }
    out.push_back(static_cast<double>(end - start));
  }
  return out;
}

// x / divisor, where x has the shape of the pooled output.
Value averaged(Call& c, const Value& x, const std::vector<PoolDim>& pools) {
  if (c.has("divisor_override")) {
    return x / c.b.like(x, c.integer("divisor_override"));
  }
  const bool include_padding = c.flag("count_include_pad");
  double uniform = 1;
  Value divisor;
  for (const PoolDim& d : pools) {
    const std::vector<double> n = counts(d, include_padding);
    if (std::all_of(n.begin(), n.end(), [&](double v) { return v == n[0]; })) {
      uniform *= n[0];
      continue;
    }
    const std::vector<int64_t> whole(n.begin(), n.end());
    const Type type(x.dtype(), {d.out});
    const Value line = is_float(x.dtype()) ? c.b.floats(n, type) : c.b.ints(whole, type);
    const Value spread = c.b.broadcast_in_dim(line, x.dims(), {d.dim});
    divisor = divisor ? divisor * spread : spread;
  }
  if (!divisor) return x / c.b.like(x, uniform);
  return x / (uniform == 1 ? divisor : divisor * uniform);
}

template <int n>
Values lower_avg_pool(Call& c) {
  Value x = c.tensor("self");
  if (c.out().numel() == 0) return {full(c.b, 0, x.dtype(), c.out().dims)};
  const std::vector<PoolDim> pools = pool_dims(c, x.dims(), c.out().dims, n);
  x = cast(x, opmath(x.dtype()));
  for (auto d = pools.rbegin(); d != pools.rend(); ++d) {
    x = window_sums(x, d->dim, d->kernel, d->stride, d->padding, d->out);
  }
  return {averaged(c, x, pools)};
}

// The transpose of window_sums: what the outputs that cover each input hold, summed.
Value covering_sums(const Value& x, const PoolDim& d) {
  Builder& b = x.builder();
  if (d.stride == 1) return window_sums(x, d.dim, d.kernel, 1, d.kernel - 1 - d.padding, d.in);
  Value sum;
  for (int64_t back = 0; back < d.overlap(); ++back) {
    Value term = covering_output(x, d, back, 0);
    // A window may end before the next one, or the one after that, begins.
    if ((back + 1) * d.stride > d.kernel) {
      const Value at = b.iota(Type(DType::kS32, {d.in}), 0) + d.padding;
      const Value offset = b.remainder(at, b.like(at, d.stride)) + (back * d.stride);
      const Value inside = b.lt(offset, b.like(offset, d.kernel));
      term = b.select(b.broadcast_in_dim(inside, term.dims(), {d.dim}), term, zeros_like(term));
    }
    sum = sum ? sum + term : term;
  }
  return sum;
}

template <int n>
Values lower_avg_pool_backward(Call& c) {
  Value grad = c.tensor("grad_output");
  const Dims in = c.out().dims;
  if (grad.numel() == 0) return {full(c.b, 0, grad.dtype(), in)};
  const std::vector<PoolDim> pools = pool_dims(c, in, grad.dims(), n);
  grad = averaged(c, cast(grad, opmath(grad.dtype())), pools);
  for (const PoolDim& d : pools) grad = covering_sums(grad, d);
  return {grad};
}

template <int n>
Values lower_adaptive_avg_pool(Call& c) {
  Value x = c.tensor("self");
  x = cast(x, opmath(x.dtype()));
  const Dims& out = c.out().dims;
  for (int64_t dim = x.rank() - 1; dim >= x.rank() - n; --dim) {
    x = apply(adaptive_average(x.dim(dim), out[dim]), x, dim);
  }
  return {x};
}

template <int n>
Values lower_adaptive_avg_pool_backward(Call& c) {
  Value grad = c.tensor("grad_output");
  grad = cast(grad, opmath(grad.dtype()));
  const Dims& in = c.out().dims;
  if (grad.dims().size() != in.size()) {
    throw std::invalid_argument("[adaptive_avg_pool] expected gradients of the input's rank");
  }
  for (int64_t dim = grad.rank() - n; dim < grad.rank(); ++dim) {
    grad = apply(transpose(adaptive_average(in[dim], grad.dim(dim))), grad, dim);
  }
  return {grad};
}

}  // namespace

void add_avg_pool(Entries& t) {
  t.push_back({.name = "avg_pool2d", .lower = lower_avg_pool<2>});
  t.push_back({.name = "avg_pool3d", .lower = lower_avg_pool<3>});
  t.push_back({.name = "avg_pool2d_backward", .lower = lower_avg_pool_backward<2>});
  t.push_back({.name = "avg_pool3d_backward", .lower = lower_avg_pool_backward<3>});
  t.push_back({.name = "_adaptive_avg_pool2d", .lower = lower_adaptive_avg_pool<2>});
  t.push_back({.name = "_adaptive_avg_pool3d", .lower = lower_adaptive_avg_pool<3>});
  t.push_back(
      {.name = "_adaptive_avg_pool2d_backward", .lower = lower_adaptive_avg_pool_backward<2>});
  t.push_back(
      {.name = "_adaptive_avg_pool3d_backward", .lower = lower_adaptive_avg_pool_backward<3>});
}

}  // namespace torch_tpu::ops
