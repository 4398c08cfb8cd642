// Fractional max pooling: windows of one size whose places follow from a random sample per plane.
#include <algorithm>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/pool.h"

namespace torch_tpu::ops {
namespace {

// Where the windows of every plane start: [planes, out], from one sample in [0, 1) per plane.
Value window_starts(const Value& sample, int64_t in, int64_t out, int64_t kernel) {
  Builder& b = sample.builder();
  const Dims dims = {sample.dim(0), out};
  const Value last = b.splat(in - kernel, Type(DType::kS32, dims));
  if (out == 1) return last;
  const double alpha = double(in - kernel) / double(out - 1);
  const DType t = sample.dtype();
  const Value shift = b.broadcast_in_dim(sample, dims, {0});
  const Value step = b.iota(Type(t, dims), 1);
  const Value start =
      b.convert((step + shift) * alpha, DType::kS32) - b.convert(shift * alpha, DType::kS32);
  const Value at = b.iota(Type(DType::kS32, dims), 1);
  return b.select(b.eq(at, b.like(at, out - 1)), last, start);
}

template <int n>
Values lower_fractional_max_pool(Call& c) {
  Builder& b = c.b;
  const Value x = c.tensor("self");
  const Dims kernel = c.ints("kernel_size");
  const Dims out = c.out().dims;
  const Dims in(x.dims().end() - n, x.dims().end());
  const int64_t count = x.numel() / std::max<int64_t>(1, stablehlo::product(in));
  if (c.out().numel() == 0) {
    return {full(b, 0, x.dtype(), out), full(b, 0, DType::kS64, c.out(1).dims)};
  }
  const Value raw = c.tensor("random_samples");
  const Value samples = b.reshape(cast(raw, opmath(raw.dtype())), {count, n});
  Dims dims = in;
  dims.insert(dims.begin(), count);
  const DType t = index_dtype(stablehlo::product(in));
  Best best = {b.reshape(x, dims), b.splat(0, Type(t, dims))};
  int64_t plane_stride = 1;
  for (int i = n - 1; i >= 0; --i) {
    // In two dimensions the first sample is for the width.
    const int which = n == 2 ? 1 - i : i;
    const int64_t size = out[out.size() - n + i];
    const Value sample = b.reshape(b.slice_dim(samples, 1, which, which + 1), {count});
    const Value starts = window_starts(sample, in[i], size, kernel[i]);
    dims[i + 1] = size;
    const Value first = b.broadcast_in_dim(starts, dims, {0, i + 1});
    Best result;
    for (int64_t k = 0; k < kernel[i]; ++k) {
      const Value at = first + k;
      const Value index = b.convert(at, t) * plane_stride;
      result = better(
          result, {take_along(best.value, at, i + 1), index + take_along(best.index, at, i + 1)});
    }
    best = result;
    plane_stride *= in[i];
  }
  return {b.reshape(best.value, out), b.reshape(best.index, out)};
}

template <int n>
Values lower_fractional_max_pool_backward(Call& c) {
  const Value grad = c.tensor("grad_output");
  const Dims in = c.tensor("self").dims();
  if (grad.numel() == 0) return {full(c.b, 0, grad.dtype(), in)};
  return {scatter_planes(grad, c.tensor("indices"), in, n, Combine::kAdd)};
}

}  // namespace

void add_fractional_pool(Entries& t) {
  t.push_back({.name = "fractional_max_pool2d", .lower = lower_fractional_max_pool<2>});
  t.push_back({.name = "fractional_max_pool3d", .lower = lower_fractional_max_pool<3>});
  t.push_back(
      {.name = "fractional_max_pool2d_backward", .lower = lower_fractional_max_pool_backward<2>});
  t.push_back({.name = "fractional_max_pool3d_backward",
               .lower = lower_fractional_max_pool_backward<3>,
               .no_meta = true});
}

}  // namespace torch_tpu::ops
