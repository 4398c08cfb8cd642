// The discrete Fourier transforms behind torch.fft.
#include <algorithm>
#include <cmath>

#include "csrc/ops/helpers.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

using stablehlo::FftType;

constexpr size_t kMaxRank = 3;  // dimensions one fft op transforms

// `normalization` as ATen numbers it: 0 nothing, 1 by sqrt(n), 2 by n. XLA's inverse transforms
// already divide by n.
double scale_of(Call& c, double n, bool divided_by_n) {
  const int64_t mode = c.integer("normalization");
  const double wanted = mode == 0 ? 1 : mode == 1 ? 1 / std::sqrt(n) : 1 / n;
  return divided_by_n ? wanted * n : wanted;
}

double transformed_count(const Dims& shape, const Dims& dims) {
  double n = 1;
  for (int64_t dim : dims) {
    n *= static_cast<double>(shape[dim]);
  }
  return n;
}

Value scaled(const Value& x, double scale) {
  if (scale == 1) {
    return x;
  }
  if (!is_complex(x.dtype())) {
    return x * scale;
  }
  Builder& b = x.builder();  // two products instead of a complex one
  return b.complex(b.real(x) * scale, b.imag(x) * scale);
}

// Order of dimensions with `dims` last.
Dims moved_last(const Dims& dims, int64_t rank) {
  Dims order = without(range(rank), dims);
  order.insert(order.end(), dims.begin(), dims.end());
  return order;
}

Dims inverse(const Dims& order) {
  Dims back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[order[i]] = static_cast<int64_t>(i);
  }
  return back;
}

// Transforms `dims` of x; for the real transforms the last of them is the halved one, of full
// length `real_size`.
Value transform(const Value& x, FftType type, const Dims& dims, int64_t real_size = 0) {
  Builder& b = x.builder();
  const Dims order = moved_last(dims, x.rank());
  Dims lengths;
  for (int64_t dim : dims) {
    lengths.push_back(x.dim(dim));
  }
  if (real_size != 0) {
    lengths.back() = real_size;
  }
  return b.transpose(b.fft(b.transpose(x, order), type, lengths), inverse(order));
}

Value complex_transform(Value x, const Dims& dims, bool forward) {
  for (size_t i = 0; i < dims.size(); i += kMaxRank) {
    const size_t end = std::min(dims.size(), i + kMaxRank);
    const Dims part(dims.begin() + static_cast<int64_t>(i),
                    dims.begin() + static_cast<int64_t>(end));
    x = transform(x, forward ? FftType::kFft : FftType::kIfft, part);
  }
  return x;
}

// In the order given: the last one is special to the real transforms.
Dims fft_dims(Call& c, int64_t rank) {
  Dims dims = c.ints("dim");
  for (int64_t& dim : dims) {
    dim = wrap_dim(dim, rank);
  }
  return dims;
}

Values lower__fft_c2c(Call& c) {
  const Value x = c.tensor("self");
  if (x.numel() == 0 || x.rank() == 0) {
    return {x};
  }
  const Dims dims = fft_dims(c, x.rank());
  const bool forward = c.flag("forward");
  const double scale = scale_of(c, transformed_count(x.dims(), dims), !forward);
  return {scaled(complex_transform(x, dims, forward), scale)};
}

Values lower__fft_r2c(Call& c) {
  const Value x = c.tensor("self");
  if (x.numel() == 0) {
    return {full(c.b, 0, c.out().dtype, c.out().dims)};
  }
  Dims dims = fft_dims(c, x.rank());
  const double scale = scale_of(c, transformed_count(x.dims(), dims), false);
  if (!c.flag("onesided")) {
    return {scaled(complex_transform(cast(x, complex_of(x.dtype())), dims, true), scale)};
  }
  const int64_t last = dims.back();
  dims.pop_back();
  const Value half = transform(x, FftType::kRfft, {last}, x.dim(last));
  return {scaled(complex_transform(half, dims, true), scale)};
}

Values lower__fft_c2r(Call& c) {
  Builder& b = c.b;
  Value x = c.tensor("self");
  if (c.out().numel() == 0) {
    return {full(b, 0, c.out().dtype, c.out().dims)};
  }
  Dims dims = fft_dims(c, x.rank());
  const int64_t last = dims.back();
  const int64_t size = c.integer("last_dim_size");
  const double scale = scale_of(c, transformed_count(c.out().dims, dims), true);
  dims.pop_back();
  x = complex_transform(x, dims, false);
  return {scaled(transform(x, FftType::kIrfft, {last}, size), scale)};
}

}  // namespace

void add_fft(Entries& t) {
  t.push_back({.name = "_fft_c2c", .lower = lower__fft_c2c});
  t.push_back({.name = "_fft_r2c", .lower = lower__fft_r2c});
  t.push_back({.name = "_fft_c2r", .lower = lower__fft_c2r});
}

}  // namespace torch_tpu::ops
