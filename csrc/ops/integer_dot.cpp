#include "csrc/ops/integer_dot.h"

#include <algorithm>

#include "csrc/ops/helpers.h"

namespace torch_tpu::ops {
namespace {

constexpr int64_t kUnrolled = 8;           // steps of a sum in one turn of the loop
constexpr int64_t kLargeResult = 1 << 10;  // elements from which the loop pays

Dims joined(std::initializer_list<Dims> parts) {
  Dims all;
  for (const Dims& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Dims sizes_at(const Value& x, const Dims& positions) {
  Dims sizes;
  for (int64_t d : positions) sizes.push_back(x.dim(d));
  return sizes;
}

Dims or_ones(const Dims& dims, size_t n) { return dims.empty() ? Dims(n, 1) : dims; }

// [groups, m, k] x [groups, k, n]: all products, then their sum. XLA fuses the two.
Value sum_at_once(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const Dims sizes = {a.dim(0), a.dim(1), a.dim(2), b.dim(2)};
  return reduce_sum(
      builder.broadcast_in_dim(a, sizes, {0, 1, 2}) * builder.broadcast_in_dim(b, sizes, {0, 2, 3}),
      {2});
}

// The same as a loop over k that adds whole matrices. For a large result this runs along rows of
// b and of the result, where the sum of each element by itself would jump through memory.
Value sum_in_steps(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const int64_t groups = a.dim(0), m = a.dim(1), n = b.dim(2);
  const int64_t extra = (kUnrolled - a.dim(2) % kUnrolled) % kUnrolled;
  const Value zero = builder.scalar(0, a.dtype());
  const Value lhs = builder.pad(a, zero, {0, 0, 0}, {0, 0, extra});
  const Value rhs = builder.pad(b, zero, {0, 0, 0}, {0, extra, 0});
  const Dims sizes = {groups, m, n};
  const auto condition = [&](const Values& state) -> Values {
    return {builder.lt(state[0], builder.scalar(lhs.dim(2), DType::kS32))};
  };
  const auto body = [&](const Values& state) -> Values {
    const Value start = builder.scalar(0, DType::kS32);
    const Value x = builder.dynamic_slice(lhs, {start, start, state[0]}, {groups, m, kUnrolled});
    const Value y = builder.dynamic_slice(rhs, {start, state[0], start}, {groups, kUnrolled, n});
    Value sum = state[1];
    for (int64_t i = 0; i < kUnrolled; ++i) {
      sum = sum + builder.broadcast_to(builder.slice_dim(x, 2, i, i + 1), sizes) *
                      builder.broadcast_to(builder.slice_dim(y, 1, i, i + 1), sizes);
    }
    return {state[0] + builder.scalar(kUnrolled, DType::kS32), sum};
  };
  const Value none = builder.splat(0, Type(a.dtype(), sizes));
  return builder.while_loop({builder.scalar(0, DType::kS32), none}, condition, body)[1];
}

}  // namespace

bool is_wide_integer(DType dtype) {
  return stablehlo::is_integer(dtype) && stablehlo::dtype_bytes(dtype) == 8;
}

Value integer_dot(const Value& a, const Value& b, const stablehlo::DotDims& dims) {
  Builder& builder = a.builder();
  const Dims a_free = without(range(a.rank()), joined({dims.lhs_batch, dims.lhs_contracting}));
  const Dims b_free = without(range(b.rank()), joined({dims.rhs_batch, dims.rhs_contracting}));
  const Dims batch = sizes_at(a, dims.lhs_batch);
  const Dims rows = sizes_at(a, a_free);
  const Dims columns = sizes_at(b, b_free);
  const int64_t m = stablehlo::product(rows), n = stablehlo::product(columns);
  const int64_t k = stablehlo::product(sizes_at(a, dims.lhs_contracting));
  const int64_t groups = stablehlo::product(batch);
  const auto arranged = [&](const Value& x, const Dims& order, const Dims& sizes) {
    return builder.reshape(builder.transpose(x, order), sizes);
  };
  const Value lhs =
      arranged(a, joined({dims.lhs_batch, a_free, dims.lhs_contracting}), {groups, m, k});
  const Value rhs =
      arranged(b, joined({dims.rhs_batch, dims.rhs_contracting, b_free}), {groups, k, n});
  const bool large = groups * m * n >= kLargeResult && k > kUnrolled;
  const Value product = large ? sum_in_steps(lhs, rhs) : sum_at_once(lhs, rhs);
  return builder.reshape(product, joined({batch, rows, columns}));
}

Value integer_convolution(const Value& x, const Value& kernel, const stablehlo::Window& window,
                          const stablehlo::ConvDims& dims, int64_t groups) {
  Builder& b = x.builder();
  const size_t n = window.strides.size();
  const Dims base_dilation = or_ones(window.base_dilation, n);
  const Dims dilation = or_ones(window.window_dilation, n);
  const Value w = b.transpose(
      kernel,
      joined({{dims.kernel_output_feature, dims.kernel_input_feature}, dims.kernel_spatial}));
  const int64_t features = w.dim(0), depth = w.dim(1);
  const Dims taps(w.dims().begin() + 2, w.dims().end());
  const int64_t count = stablehlo::product(taps);
  Dims interior;
  for (int64_t d : base_dilation) interior.push_back(d - 1);
  const Value padded =
      b.pad(b.transpose(x, joined({{dims.input_batch, dims.input_feature}, dims.input_spatial})),
            b.scalar(0, x.dtype()), joined({{0, 0}, window.padding_low}),
            joined({{0, 0}, window.padding_high}), joined({{0, 0}, interior}));
  Dims out;
  for (size_t i = 0; i < n; ++i) {
    const int64_t room = padded.dim(static_cast<int64_t>(i) + 2) - dilation[i] * (taps[i] - 1) - 1;
    out.push_back(room < 0 ? 0 : room / window.strides[i] + 1);
  }
  const int64_t batch = x.dim(dims.input_batch);
  const Value flat = b.reshape(w, {groups, features / groups, depth, count});
  Value sum = b.splat(0, Type(x.dtype(), joined({{groups, batch}, out, {features / groups}})));
  for (int64_t tap = 0; tap < count; ++tap) {
    Dims starts = {0, 0}, limits = {padded.dim(0), padded.dim(1)};
    int64_t rest = tap;
    Dims at(n);
    for (size_t i = n; i-- > 0; rest /= taps[i]) at[i] = rest % taps[i] * dilation[i];
    for (size_t i = 0; i < n; ++i) {
      starts.push_back(at[i]);
      limits.push_back(out[i] == 0 ? at[i] : at[i] + (out[i] - 1) * window.strides[i] + 1);
    }
    const Value part = b.reshape(b.slice(padded, starts, limits, joined({{1, 1}, window.strides})),
                                 joined({{batch, groups, depth}, out}));
    const Value weights =
        b.reshape(b.slice_dim(flat, 3, tap, tap + 1), {groups, features / groups, depth});
    sum = sum + integer_dot(part, weights, {{1}, {0}, {2}, {2}});
  }
  // [groups, batch, out, features] -> [batch, features, out], and that into the order asked for.
  const auto last = static_cast<int64_t>(n) + 2;
  Dims order = {1, 0, last};
  for (int64_t i = 2; i < last; ++i) order.push_back(i);
  const Value plain = b.reshape(b.transpose(sum, order), joined({{batch, features}, out}));
  Dims target(n + 2);
  target[static_cast<size_t>(dims.output_batch)] = 0;
  target[static_cast<size_t>(dims.output_feature)] = 1;
  for (size_t i = 0; i < n; ++i) {
    target[static_cast<size_t>(dims.output_spatial[i])] = static_cast<int64_t>(i) + 2;
  }
  return b.transpose(plain, target);
}

}  // namespace torch_tpu::ops
