// Convolution in 1 to 3 dimensions, plain and transposed, with groups, and its three gradients.
// Everything is one of three maps: forward (x, weight -> y), its transpose (y, weight -> x) and the
// weight gradient (x, y -> weight); a transposed convolution swaps the first two. Kernels are
// flipped by `reverse`, not by window_reversal, and groups are feature groups, never batch groups:
// the other forms leave XLA:CPU's fast path (up to 300 times slower). Depthwise kernels are sums of
// shifted products.
#include <algorithm>

#include "csrc/ops/helpers.h"
#include "csrc/ops/integer_dot.h"
#include "csrc/ops/matmul_precision.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// Taps of a depthwise kernel up to which unrolling them is compact enough.
constexpr int64_t kMaxDepthwiseTaps = 64;

struct Conv {
  Dims stride, padding, dilation;
  int64_t groups = 1;

  size_t spatial() const { return stride.size(); }
};

Dims spatial_of(const Value& x) { return Dims(x.dims().begin() + 2, x.dims().end()); }

Dims with_spatial(int64_t batch, int64_t features, const Dims& spatial) {
  Dims dims = {batch, features};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return dims;
}

Dims spatial_dims(const Conv& conv) {
  Dims dims;
  for (size_t i = 0; i < conv.spatial(); ++i) dims.push_back(static_cast<int64_t>(i) + 2);
  return dims;
}

// Distance between the first and the last tap.
int64_t reach(const Conv& conv, const Dims& kernel, size_t i) {
  return conv.dilation[i] * (kernel[i] - 1);
}

stablehlo::ConvDims standard_dims(const Conv& conv) {
  stablehlo::ConvDims dims;
  dims.input_spatial = dims.kernel_spatial = dims.output_spatial = spatial_dims(conv);
  return dims;
}

// Negative padding is cut off first: XLA:CPU convolves slowly with it.
Value convolve(Value x, const Value& kernel, stablehlo::Window window,
               const stablehlo::ConvDims& dims, int64_t groups) {
  Builder& b = x.builder();
  for (size_t i = 0; i < window.strides.size(); ++i) {
    if (!window.base_dilation.empty() && window.base_dilation[i] != 1) continue;
    int64_t& low = window.padding_low[i];
    int64_t& high = window.padding_high[i];
    const int64_t dim = dims.input_spatial[i];
    if (low < 0 || high < 0) {
      x = b.slice_dim(x, dim, std::max<int64_t>(0, -low), x.dim(dim) + std::min<int64_t>(0, high));
      low = std::max<int64_t>(0, low);
      high = std::max<int64_t>(0, high);
    }
  }
  const int64_t features =
      kernel.dim(dims.kernel_output_feature) * kernel.dim(dims.kernel_input_feature);
  if (is_wide_integer(x.dtype()) && kernel.numel() <= kMaxIntegerTaps * features) {
    return integer_convolution(x, kernel, window, dims, groups);
  }
  return b.convolution(x, kernel, window, dims, groups, 1, opmath(x.dtype()),
                       matmul_precision(x.dtype()));
}

// Over the samples first, then over space. XLA would join the two, and its sum over the innermost
// dimensions is some six times slower on CPU; the barrier keeps them apart.
Value sum_per_feature(const Value& x) {
  const Value sum = x.builder().optimization_barrier({reduce_sum(x, {0})})[0];
  return reduce_sum(sum, without(range(sum.rank()), {0}));
}

// --- depthwise: one input feature per group -----------------------------------------------------

bool is_depthwise(const Conv& conv, const Dims& weight) {
  const int64_t taps = stablehlo::product(Dims(weight.begin() + 2, weight.end()));
  return conv.groups > 1 && weight[1] == 1 && taps <= kMaxDepthwiseTaps;
}

// Calls visit(position, flat index) for every tap, the last dimension fastest.
template <typename Visit>
void for_each_tap(const Dims& kernel, Visit visit) {
  Dims at(kernel.size(), 0);
  for (int64_t flat = 0; flat < stablehlo::product(kernel); ++flat) {
    visit(at, flat);
    for (size_t i = kernel.size(); i-- > 0;) {
      if (++at[i] < kernel[i]) break;
      at[i] = 0;
    }
  }
}

Value pad_spatial(const Value& x, const Dims& low, const Dims& high, const Dims& interior) {
  const auto spread = [](const Dims& dims) {
    Dims out = {0, 0};
    out.insert(out.end(), dims.begin(), dims.end());
    return out;
  };
  Builder& b = x.builder();
  return b.pad(x, b.scalar(0, x.dtype()), spread(low), spread(high), spread(interior));
}

// What tap `at` sees of a padded input: `count` positions, `step` apart.
Value tap_slice(const Value& x, const Conv& conv, const Dims& at, const Dims& count,
                const Dims& step) {
  Dims starts = {0, 0}, limits = {x.dim(0), x.dim(1)}, strides = {1, 1};
  for (size_t i = 0; i < at.size(); ++i) {
    starts.push_back(at[i] * conv.dilation[i]);
    limits.push_back(starts.back() + (count[i] - 1) * step[i] + 1);
    strides.push_back(step[i]);
  }
  return x.builder().slice(x, starts, limits, strides);
}

// weight [features, 1, ...] at a tap, over the feature dimension of `dims`.
Value tap_weight(const Value& weight, int64_t flat, const Dims& dims) {
  Builder& b = weight.builder();
  const int64_t features = weight.dim(0);
  const Value taps = b.reshape(weight, {features, weight.numel() / features});
  const Value tap = b.reshape(b.slice_dim(taps, 1, flat, flat + 1), {features});
  return b.broadcast_in_dim(tap, dims, {1});
}

// Repeats each feature for the outputs of its group.
Value repeat_features(const Value& x, int64_t features) {
  if (x.dim(1) == features) return x;
  Builder& b = x.builder();
  const Dims spatial = spatial_of(x);
  Dims wide = {x.dim(0), x.dim(1), features / x.dim(1)};
  wide.insert(wide.end(), spatial.begin(), spatial.end());
  Dims map = {0, 1};
  for (size_t i = 0; i < spatial.size(); ++i) map.push_back(static_cast<int64_t>(i) + 3);
  return b.reshape(b.broadcast_in_dim(x, wide, map), with_spatial(x.dim(0), features, spatial));
}

// Padding above the input so that the windows are exactly those of `out` positions.
Dims exact_padding(const Conv& conv, const Dims& in, const Dims& kernel, const Dims& out) {
  Dims high;
  for (size_t i = 0; i < in.size(); ++i) {
    high.push_back((out[i] - 1) * conv.stride[i] + reach(conv, kernel, i) + 1 - in[i] -
                   conv.padding[i]);
  }
  return high;
}

Value depthwise_input(const Value& x, const Conv& conv, const Dims& kernel, const Dims& out,
                      int64_t features) {
  const Dims none(conv.spatial(), 0);
  const Dims high = exact_padding(conv, spatial_of(x), kernel, out);
  const Value wide = cast(repeat_features(x, features), opmath(x.dtype()));
  return pad_spatial(wide, conv.padding, high, none);
}

Value depthwise_forward(const Value& x, const Value& weight, const Conv& conv, const Dims& out) {
  const Dims kernel = spatial_of(weight);
  const Value padded = depthwise_input(x, conv, kernel, out, weight.dim(0));
  const Value w = cast(weight, padded.dtype());
  Value sum;
  for_each_tap(kernel, [&](const Dims& at, int64_t flat) {
    const Value part = tap_slice(padded, conv, at, out, conv.stride);
    const Value term = part * tap_weight(w, flat, part.dims());
    sum = sum ? sum + term : term;
  });
  return sum;
}

Value depthwise_transpose(const Value& y, const Value& weight, const Conv& conv, const Dims& out) {
  Builder& b = y.builder();
  const Dims kernel = spatial_of(weight);
  const Dims in = spatial_of(y);
  Dims low, high, interior;
  for (size_t i = 0; i < in.size(); ++i) {
    low.push_back(reach(conv, kernel, i) - conv.padding[i]);
    interior.push_back(conv.stride[i] - 1);
    high.push_back(out[i] + conv.padding[i] - (in[i] - 1) * conv.stride[i] - 1);
  }
  const DType t = opmath(y.dtype());
  const Value padded = pad_spatial(cast(y, t), low, high, interior);
  const Value w = cast(weight, t);
  const Dims ones(conv.spatial(), 1);
  const int64_t taps = stablehlo::product(kernel);
  Value sum;
  for_each_tap(kernel, [&](const Dims& at, int64_t flat) {
    const Value part = tap_slice(padded, conv, at, out, ones);
    const Value term = part * tap_weight(w, taps - 1 - flat, part.dims());
    sum = sum ? sum + term : term;
  });
  if (conv.groups == weight.dim(0)) return sum;
  Dims grouped = {y.dim(0), conv.groups, weight.dim(0) / conv.groups};
  grouped.insert(grouped.end(), out.begin(), out.end());
  return reduce_sum(b.reshape(sum, grouped), {2});
}

Value depthwise_weight_grad(const Value& x, const Value& y, const Conv& conv, const Dims& kernel) {
  Builder& b = y.builder();
  const Dims out = spatial_of(y);
  const int64_t features = y.dim(1);
  const Value padded = depthwise_input(x, conv, kernel, out, features);
  const Value grad = cast(y, padded.dtype());
  Values taps;
  for_each_tap(kernel, [&](const Dims& at, int64_t) {
    const Value sum = sum_per_feature(tap_slice(padded, conv, at, out, conv.stride) * grad);
    taps.push_back(b.reshape(sum, {features, 1}));
  });
  return b.reshape(taps.size() == 1 ? taps[0] : b.concatenate(taps, 1),
                   with_spatial(features, 1, kernel));
}

// --- the three maps -----------------------------------------------------------------------------

// x [N, C, ...], weight [O, C / groups, ...] -> y [N, O, out...].
Value forward(const Value& x, const Value& weight, const Conv& conv, const Dims& out) {
  if (is_depthwise(conv, weight.dims())) return depthwise_forward(x, weight, conv, out);
  stablehlo::Window window;
  window.strides = conv.stride;
  window.window_dilation = conv.dilation;
  window.padding_low = conv.padding;
  const Dims in = spatial_of(x);
  const Dims kernel = spatial_of(weight);
  window.padding_high = exact_padding(conv, in, kernel, out);
  for (size_t i = 0; i < in.size(); ++i) {
    // The usual padding where it gives the same windows.
    const int64_t room = in[i] + 2 * conv.padding[i] - reach(conv, kernel, i) - 1;
    if (room / conv.stride[i] + 1 == out[i]) window.padding_high[i] = conv.padding[i];
  }
  return convolve(x, weight, window, standard_dims(conv), conv.groups);
}

// y [N, O, ...], weight [O, C / groups, ...] -> x [N, C, out...].
Value transpose(const Value& y, const Value& weight, const Conv& conv, const Dims& out) {
  if (is_depthwise(conv, weight.dims())) return depthwise_transpose(y, weight, conv, out);
  Builder& b = y.builder();
  const Dims kernel = spatial_of(weight);
  const Dims in = spatial_of(y);
  stablehlo::Window window;
  window.strides = Dims(conv.spatial(), 1);
  window.base_dilation = conv.stride;
  window.window_dilation = conv.dilation;
  for (size_t i = 0; i < in.size(); ++i) {
    window.padding_low.push_back(reach(conv, kernel, i) - conv.padding[i]);
    window.padding_high.push_back(out[i] + conv.padding[i] - (in[i] - 1) * conv.stride[i] - 1);
  }
  stablehlo::ConvDims dims = standard_dims(conv);
  Value w = b.reverse(weight, spatial_dims(conv));
  if (conv.groups == 1) {
    std::swap(dims.kernel_output_feature, dims.kernel_input_feature);
  } else {
    const int64_t groups = conv.groups;
    const int64_t o = weight.dim(0) / groups;
    const int64_t c = weight.dim(1);
    Dims split = {groups, o, c};
    split.insert(split.end(), kernel.begin(), kernel.end());
    Dims order = range(static_cast<int64_t>(split.size()));
    std::swap(order[1], order[2]);
    w = b.reshape(b.transpose(b.reshape(w, split), order), with_spatial(groups * c, o, kernel));
  }
  return convolve(y, w, window, dims, conv.groups);
}

// x [N, C, ...], y [N, O, ...] -> weight [O, C / groups, kernel...]: y is the kernel that slides
// over x, and the samples are the features that are summed.
Value weight_grad(const Value& x, const Value& y, const Conv& conv, const Dims& kernel) {
  const int64_t groups = conv.groups;
  const int64_t c = x.dim(1) / groups;
  if (is_depthwise(conv, with_spatial(y.dim(1), c, kernel))) {
    return depthwise_weight_grad(x, y, conv, kernel);
  }
  Builder& b = y.builder();
  const Dims in = spatial_of(x);
  Value samples = x;  // [groups * N, C / groups, ...]
  if (groups > 1) {
    Dims split = {x.dim(0), groups, c};
    split.insert(split.end(), in.begin(), in.end());
    Dims order = range(static_cast<int64_t>(split.size()));
    std::swap(order[0], order[1]);
    samples =
        b.reshape(b.transpose(b.reshape(x, split), order), with_spatial(groups * x.dim(0), c, in));
  }
  stablehlo::Window window;
  window.strides = conv.dilation;
  window.window_dilation = conv.stride;
  window.padding_low = conv.padding;
  window.padding_high = exact_padding(conv, in, kernel, spatial_of(y));
  stablehlo::ConvDims dims = standard_dims(conv);
  std::swap(dims.input_batch, dims.input_feature);
  std::swap(dims.kernel_output_feature, dims.kernel_input_feature);
  std::swap(dims.output_batch, dims.output_feature);
  return convolve(samples, y, window, dims, groups);
}

// --- entries ------------------------------------------------------------------------------------

Conv conv_of(Call& c) {
  return {c.ints("stride"), c.ints("padding"), c.ints("dilation"), c.integer("groups")};
}

Values lower_convolution_overrideable(Call& c) {
  const Value x = c.tensor("input");
  const Value weight = c.tensor("weight");
  const Conv conv = conv_of(c);
  const Dims in = spatial_of(x);
  const Dims kernel = spatial_of(weight);
  const Dims extra = c.ints("output_padding");
  const bool transposed = c.flag("transposed");
  Dims out;
  for (size_t i = 0; i < in.size(); ++i) {
    const int64_t r = reach(conv, kernel, i);
    out.push_back(transposed ? (in[i] - 1) * conv.stride[i] - 2 * conv.padding[i] + r + extra[i] + 1
                             : (in[i] + 2 * conv.padding[i] - r - 1) / conv.stride[i] + 1);
  }
  Value y = transposed ? transpose(x, weight, conv, out) : forward(x, weight, conv, out);
  if (const Value bias = c.optional_tensor("bias")) {
    y = y + c.b.broadcast_in_dim(cast(bias, y.dtype()), y.dims(), {1});
  }
  return {cast(y, x.dtype())};
}

Values lower_convolution_backward_overrideable(Call& c) {
  const Value grad = c.tensor("grad_output");
  const Value x = c.tensor("input");
  const Value weight = c.tensor("weight");
  const Conv conv = conv_of(c);
  const bool transposed = c.flag("transposed");
  const std::vector<bool> mask = c.flags("output_mask");
  Values grads(3);
  if (mask[0]) {
    const Value dx = transposed ? forward(grad, weight, conv, spatial_of(x))
                                : transpose(grad, weight, conv, spatial_of(x));
    grads[0] = cast(dx, x.dtype());
  }
  if (mask[1]) {
    const Value dw = transposed ? weight_grad(grad, x, conv, spatial_of(weight))
                                : weight_grad(x, grad, conv, spatial_of(weight));
    grads[1] = cast(dw, weight.dtype());
  }
  if (mask[2]) {
    grads[2] = cast(sum_per_feature(cast(grad, opmath(grad.dtype()))), grad.dtype());
  }
  return grads;
}

}  // namespace

void add_conv(Entries& t) {
  t.push_back({.name = "convolution_overrideable", .lower = lower_convolution_overrideable});
  t.push_back({.name = "convolution_backward_overrideable",
               .lower = lower_convolution_backward_overrideable});
}

}  // namespace torch_tpu::ops
