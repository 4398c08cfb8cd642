// Resampling: nearest, linear, cubic and antialiased interpolation, with backwards. Every mode is a
// separable linear map, so one Band per dimension says it all, and the gradient is its transpose.
// Source positions are computed on the host in the precision CPU uses; the scale factors are
// therefore part of the key.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "csrc/ops/band.h"
#include "csrc/ops/helpers.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {

void add_grid_sampler(Entries& t);  // grid_sampler.cpp

namespace {

enum class Mode { kNearest, kNearestExact, kLinear, kCubic, kLinearAa, kCubicAa, kLanczosAa };

// One dimension of a resampling.
struct Axis {
  int64_t in = 0, out = 0;
  double factor = 0;  // the user's scale factor; 0 when only sizes were given
  bool align_corners = false;
};

// Input steps per output step.
template <typename T>
T step_of(const Axis& a) {
  if (a.align_corners) return a.out > 1 ? T(a.in - 1) / T(a.out - 1) : T(0);
  return a.factor > 0 ? T(1.0 / a.factor) : T(a.in) / T(a.out);
}

template <typename T>
T source(const Axis& a, T step, int64_t i) {
  return a.align_corners ? step * T(i) : step * (T(i) + T(0.5)) - T(0.5);
}

Band empty_band(const Axis& a) {
  Band band;
  band.in = a.in;
  band.rows.resize(a.out);
  return band;
}

Band nearest(const Axis& a, bool exact) {
  Band band = empty_band(a);
  const float step = step_of<float>(a);
  for (int64_t i = 0; i < a.out; ++i) {
    const float at = exact ? std::floor((float(i) + 0.5f) * step) : std::floor(float(i) * step);
    int64_t index = static_cast<int64_t>(at);
    // CPU's shortcuts, which no rounding of the factor disturbs.
    if (!exact && a.out == a.in) index = i;
    if (!exact && a.out == 2 * a.in) index = i / 2;
    add_weight(band, i, index, 1);
  }
  return band;
}

template <typename T>
Band linear(const Axis& a) {
  Band band = empty_band(a);
  const T step = step_of<T>(a);
  for (int64_t i = 0; i < a.out; ++i) {
    if (a.in == a.out) {
      add_weight(band, i, i, 1);
      continue;
    }
    const T at = std::max(source(a, step, i), T(0));
    const int64_t index = std::min<int64_t>(static_cast<int64_t>(at), a.in - 1);
    const T weight = std::clamp(at - T(index), T(0), T(1));
    add_weight(band, i, index, T(1) - weight);
    add_weight(band, i, index + 1, weight);
  }
  return band;
}

// Keys' cubic kernel.
template <typename T>
T cubic_weight(T x, T a) {
  x = std::abs(x);
  if (x <= T(1)) return ((a + T(2)) * x - (a + T(3))) * x * x + T(1);
  if (x < T(2)) return ((a * x - T(5) * a) * x + T(8) * a) * x - T(4) * a;
  return T(0);
}

template <typename T>
Band cubic(const Axis& a) {
  Band band = empty_band(a);
  const T step = step_of<T>(a);
  for (int64_t i = 0; i < a.out; ++i) {
    if (a.in == a.out) {
      add_weight(band, i, i, 1);
      continue;
    }
    const T at = source(a, step, i);
    const int64_t index = static_cast<int64_t>(std::floor(at));
    const T offset = std::clamp(at - T(index), T(0), T(1));
    for (int64_t k = -1; k <= 2; ++k) {
      add_weight(band, i, index + k, cubic_weight(offset - T(k), T(-0.75)));
    }
  }
  return band;
}

double sinc(double x) { return x == 0 ? 1 : std::sin(M_PI * x) / (M_PI * x); }

double filter(Mode mode, double x) {
  switch (mode) {
    case Mode::kLinearAa:
      return std::max(0.0, 1 - std::abs(x));
    case Mode::kCubicAa:
      return cubic_weight(x, -0.5);
    default:
      return std::abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0;
  }
}

template <typename T>
Band antialiased(const Axis& a, Mode mode) {
  Band band = empty_band(a);
  const T step = step_of<T>(a);
  const T radius = mode == Mode::kLinearAa ? 1 : mode == Mode::kCubicAa ? 2 : 3;
  const T support = step >= T(1) ? radius * step : radius;
  const T shrink = step >= T(1) ? T(1) / step : T(1);
  for (int64_t i = 0; i < a.out; ++i) {
    const T center = step * (T(i) + T(0.5));
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + T(0.5)), 0);
    const int64_t end = std::min<int64_t>(static_cast<int64_t>(center + support + T(0.5)), a.in);
    std::vector<double> weights;
    double total = 0;
    for (int64_t j = first; j < end; ++j) {
      weights.push_back(filter(mode, (T(j) - center + T(0.5)) * shrink));
      total += weights.back();
    }
    for (double& w : weights) w = total != 0 ? w / total : w;
    band.rows[i] = {first, weights};
  }
  return band;
}

template <typename T>
Band band_of(const Axis& a, Mode mode) {
  switch (mode) {
    case Mode::kNearest:
      return nearest(a, false);
    case Mode::kNearestExact:
      return nearest(a, true);
    case Mode::kLinear:
      return linear<T>(a);
    case Mode::kCubic:
      return cubic<T>(a);
    default:
      return antialiased<T>(a, mode);
  }
}

// The maps of the last n dimensions, from sizes `in` to sizes `out`.
template <int n>
std::vector<Band> bands(Call& c, Mode mode, const Dims& in, const Dims& out, DType t) {
  static constexpr std::string_view kFactors[3][3] = {
      {"scales"}, {"scales_h", "scales_w"}, {"scales_d", "scales_h", "scales_w"}};
  std::vector<Band> result;
  for (int i = 0; i < n; ++i) {
    Axis a;
    a.in = in[in.size() - n + i];
    a.out = out[out.size() - n + i];
    a.factor = c.known(kFactors[n - 1][i]).value_or(0).to_double();
    const bool has_corners = mode != Mode::kNearest && mode != Mode::kNearestExact;
    a.align_corners = has_corners && c.flag("align_corners");
    result.push_back(t == DType::kF64 ? band_of<double>(a, mode) : band_of<float>(a, mode));
  }
  return result;
}

// CPU interpolates bytes with 16-bit weights of the largest common scale that fits. Sums of these
// are exact in f32, so that the results are CPU's.
void quantize(Band& band) {
  double largest = 0;
  for (const Band::Row& row : band.rows) {
    for (double w : row.weights) largest = std::max(largest, w);
  }
  int bits = 0;
  while (bits < 22 && std::floor(0.5 + largest * std::exp2(bits + 1)) < 32768) ++bits;
  for (Band::Row& row : band.rows) {
    for (double& w : row.weights) w = std::ldexp(std::round(std::ldexp(w, bits)), -bits);
  }
}

template <Mode mode, int n>
Values lower_upsample(Call& c) {
  Value x = c.tensor("self");
  const DType t = x.dtype();
  const bool copies = mode == Mode::kNearest || mode == Mode::kNearestExact;
  const bool bytes = !copies && is_integer(t);
  if (!is_float(t) && (t != DType::kU8 || (!copies && n != 2))) {
    throw std::invalid_argument("[upsample] expected floats or bytes");
  }
  if (x.rank() != n + 2) throw std::invalid_argument("[upsample] expected batches of channels");
  std::vector<Band> maps = bands<n>(c, mode, x.dims(), c.out().dims, t);
  if (!copies) x = cast(x, float_math(t));
  for (int i = n - 1; i >= 0; --i) {
    if (bytes) quantize(maps[i]);
    x = apply(maps[i], x, x.rank() - n + i);
    if (bytes) {  // rounded between the dimensions, too
      const DType wide = x.dtype();
      x = c.b.clamp(c.b.scalar(0, wide), c.b.floor(x + 0.5), c.b.scalar(255, wide));
    }
  }
  return {x};
}

template <Mode mode, int n>
Values lower_upsample_backward(Call& c) {
  Value grad = c.tensor("grad_output");
  const DType t = grad.dtype();
  const std::vector<Band> maps = bands<n>(c, mode, c.out().dims, grad.dims(), t);
  grad = cast(grad, opmath(t));
  for (int i = 0; i < n; ++i) grad = apply(transpose(maps[i]), grad, grad.rank() - n + i);
  return {grad};
}

template <Mode mode, int n>
void add_mode(Entries& t, std::string_view name, std::string_view backward) {
  std::vector<std::string_view> keyed = {"scales_h", "scales_w"};
  if (n == 1) keyed = {"scales"};
  if (n == 3) keyed.insert(keyed.begin(), "scales_d");
  t.push_back({.name = name, .lower = lower_upsample<mode, n>, .keyed = keyed});
  t.push_back({.name = backward, .lower = lower_upsample_backward<mode, n>, .keyed = keyed});
}

}  // namespace

void add_upsample(Entries& t) {
  add_mode<Mode::kNearest, 1>(t, "upsample_nearest1d", "upsample_nearest1d_backward");
  add_mode<Mode::kNearest, 2>(t, "upsample_nearest2d", "upsample_nearest2d_backward");
  add_mode<Mode::kNearest, 3>(t, "upsample_nearest3d", "upsample_nearest3d_backward");
  add_mode<Mode::kNearestExact, 1>(t, "_upsample_nearest_exact1d",
                                   "_upsample_nearest_exact1d_backward");
  add_mode<Mode::kNearestExact, 2>(t, "_upsample_nearest_exact2d",
                                   "_upsample_nearest_exact2d_backward");
  add_mode<Mode::kNearestExact, 3>(t, "_upsample_nearest_exact3d",
                                   "_upsample_nearest_exact3d_backward");
  add_mode<Mode::kLinear, 1>(t, "upsample_linear1d", "upsample_linear1d_backward");
  add_mode<Mode::kLinear, 2>(t, "upsample_bilinear2d", "upsample_bilinear2d_backward");
  add_mode<Mode::kLinear, 3>(t, "upsample_trilinear3d", "upsample_trilinear3d_backward");
  add_mode<Mode::kCubic, 2>(t, "upsample_bicubic2d", "upsample_bicubic2d_backward");
  add_mode<Mode::kLinearAa, 2>(t, "_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa_backward");
  add_mode<Mode::kCubicAa, 2>(t, "_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa_backward");
  // Only in newer versions; entries without an op are skipped.
  add_mode<Mode::kLanczosAa, 2>(t, "_upsample_lanczos2d_aa", "_upsample_lanczos2d_aa_backward");
  add_grid_sampler(t);
}

}  // namespace torch_tpu::ops
