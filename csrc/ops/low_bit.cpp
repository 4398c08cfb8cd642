// Products of narrow types: int8, float8 with scales, and float activations times packed int8 or
// int4 weights. Casts to and from float8 are in helpers.cpp, grouped products in grouped_mm.cpp.
#include "csrc/ops/low_bit.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "csrc/ops/helpers.h"
#include "csrc/ops/matmul_precision.h"
#include "csrc/ops/target.h"

namespace torch_tpu::ops {
namespace {

using stablehlo::DotDims;

const DotDims kMatrices = {{}, {}, {1}, {0}};

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(std::string("[low_bit] expected ") + what);
}

// In f32, which holds integers up to 2^24: exact for so many terms at a time.
Value int_mm_by_float(const Value& x, const Value& y) {
  constexpr int64_t kExact = (1 << 24) / (128 * 128);
  Builder& b = x.builder();
  Value sum = full(b, 0, DType::kS32, {x.dim(0), y.dim(1)});
  for (int64_t k = 0; k < x.dim(1); k += kExact) {
    const int64_t end = std::min(k + kExact, x.dim(1));
    const Value part =
        b.dot_general(cast(b.slice_dim(x, 1, k, end), DType::kF32),
                      cast(b.slice_dim(y, 0, k, end), DType::kF32), kMatrices, DType::kF32);
    sum = sum + b.convert(part, DType::kS32);
  }
  return sum;
}

Values lower_int_mm(Call& c) {
  const Value a = c.tensor("self"), b = c.tensor("mat2");
  if (!target().has_s8_dot) return {int_mm_by_float(a, b)};
  return {c.b.dot_general(a, b, kMatrices, DType::kS32)};
}

// --- float8 with scales
// ---------------------------------------------------------------------------

// One scale for all, or one per row of self and per column of mat2.
void check_scaled(const Value& a, const Value& b, const Value& scale_a, const Value& scale_b) {
  require(is_float8(a.dtype()) && is_float8(b.dtype()), "float8 factors");
  require(a.rank() == 2 && b.rank() == 2 && a.dim(1) == b.dim(0), "matrices that fit");
  require(scale_a.dtype() == DType::kF32 && scale_b.dtype() == DType::kF32, "float scales");
  const bool whole = scale_a.numel() == 1 && scale_b.numel() == 1;
  const bool by_row = scale_a.dims() == Dims{a.dim(0), 1} && scale_b.dims() == Dims{1, b.dim(1)};
  require(whole || by_row, "one scale, or one per row and per column");
}

Value scaled_mm(Call& c, const Value& scale_a, const Value& scale_b, const Value& scale_result) {
  const Value a = c.tensor("self"), b = c.tensor("mat2");
  check_scaled(a, b, scale_a, scale_b);
  Value result = float8_dot(a, b, kMatrices);
  for (const Value& scale : {scale_a, scale_b}) {
    const Value factor = scale.numel() == 1 ? c.b.reshape(scale, {}) : scale;
    result = result * c.b.broadcast_to(factor, result.dims());
  }
  if (const Value bias = c.optional_tensor("bias")) {
    require(bias.numel() == b.dim(1), "one bias per column");
    result = result + c.b.broadcast_to(cast(bias, DType::kF32), result.dims());
  }
  const DType out = c.dtype_arg("out_dtype").value_or(a.dtype());
  if (scale_result && is_float8(out)) {
    result = result / c.b.broadcast_to(c.b.reshape(scale_result, {}), result.dims());
  }
  return cast(result, out);
}

Values lower_scaled_mm(Call& c) {
  return {
      scaled_mm(c, c.tensor("scale_a"), c.tensor("scale_b"), c.optional_tensor("scale_result"))};
}

// The scales' shapes say what the recipes 0 (one for all) and 1 (by row) say; no other is served.
Values lower_scaled_mm_v2(Call& c) {
  const Values a = c.tensors("scale_a"), b = c.tensors("scale_b");
  const Dims recipe_a = c.ints("recipe_a"), recipe_b = c.ints("recipe_b");
  require(a.size() == 1 && b.size() == 1 && recipe_a == recipe_b && recipe_a.size() == 1 &&
              (recipe_a[0] == 0 || recipe_a[0] == 1),
          "scales for all or by row");
  require((recipe_a[0] == 0) == (a[0].numel() == 1), "scales that fit the recipe");
  require(c.ints("contraction_dim").empty(), "no contraction_dim");
  return {scaled_mm(c, a[0], b[0], {})};
}

// --- packed weights
// -------------------------------------------------------------------------------

Value dot_transposed(const Value& x, const Value& weight) {
  return x.builder().dot_general(x, weight, {{}, {}, {1}, {1}}, opmath(x.dtype()),
                                 matmul_precision(x.dtype()));
}

// self times the transpose of an int8 matrix whose rows have scales.
Values lower_weight_int8pack_mm(Call& c) {
  const Value self = c.tensor("self");
  const Value result = dot_transposed(self, cast(c.tensor("mat2"), self.dtype()));
  return {result * c.b.broadcast_to(cast(c.tensor("scales"), result.dtype()), result.dims())};
}

// Two weights a byte, [N, K/2], as int32 words of the shape PyTorch gives packed weights. How the
// weights lie inside is the device's own affair; here they stay in order.
Values lower_convert_weight_to_int4pack(Call& c) {
  const Value bytes = c.tensor("self");
  require(bytes.dtype() == DType::kU8 && bytes.rank() == 2, "a matrix of bytes");
  const int64_t words = bytes.numel() / 4;
  const Value grouped = c.b.reshape(bytes, {words, 4});
  const Value packed = c.b.bitcast_convert(grouped, Type(DType::kS32, {words}));
  return {c.b.reshape(packed, c.out().dims)};
}

// [N, K] in 0..15. The first of two weights is in the upper half of a byte.
Value unpack_int4(const Value& packed, int64_t n) {
  Builder& b = packed.builder();
  const int64_t words = packed.numel();
  const Value flat = b.reshape(packed, {words});
  const Value bytes = b.bitcast_convert(flat, Type(DType::kU8, {words, 4}));
  const Value first = b.shift_right_logical(bytes, b.like(bytes, 4));
  const Value second = b.and_(bytes, b.like(bytes, 15));
  const Dims pair = {words, 4, 1};
  const Value both = b.concatenate({b.reshape(first, pair), b.reshape(second, pair)}, 2);
  return b.reshape(both, {n, words * 8 / n});
}

// Weights are (q - 8) * scale + zero, with a scale and a zero per column and group of K.
Values lower_weight_int4pack_mm(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const Value parameters = c.tensor("qScaleAndZeros");  // [K / group, N, 2]
  const Value packed = c.tensor("mat2");
  require(self.rank() == 2 && packed.rank() == 4 && packed.dtype() == DType::kS32,
          "a matrix and weights of _convert_weight_to_int4pack");
  const int64_t n = packed.dim(0) * 8, k = self.dim(1), group = c.integer("qGroupSize");
  require(packed.numel() * 8 == n * k && k % group == 0, "weights and groups that fit");
  require(parameters.dims() == Dims{k / group, n, 2}, "scales and zeros of [K / group, N, 2]");
  const DType wide = opmath(self.dtype());
  const Dims grouped = {n, k / group, group};
  const auto parameter = [&](int64_t which) {
    const Value one = b.reshape(b.slice_dim(parameters, 2, which, which + 1), {k / group, n});
    return b.broadcast_in_dim(cast(one, wide), grouped, {1, 0});
  };
  const Value q = b.reshape(cast(unpack_int4(packed, n), wide), grouped);
  const Value weight = (q - 8) * parameter(0) + parameter(1);
  const Value result = dot_transposed(self, cast(b.reshape(weight, {n, k}), self.dtype()));
  return {cast(result, self.dtype())};
}

}  // namespace

bool is_float8(DType dtype) { return dtype == DType::kF8E4M3FN || dtype == DType::kF8E5M2; }

Value float8_dot(const Value& a, const Value& b, const DotDims& dims) {
  return a.builder().dot_general(cast(a, DType::kBF16), cast(b, DType::kBF16), dims, DType::kF32);
}

void add_low_bit(Entries& t) {
  t.push_back({.name = "_int_mm", .lower = lower_int_mm});
  t.push_back({.name = "_scaled_mm", .lower = lower_scaled_mm, .no_meta = true});
  t.push_back({.name = "_scaled_mm_v2", .lower = lower_scaled_mm_v2, .no_meta = true});
  t.push_back({.name = "_weight_int8pack_mm", .lower = lower_weight_int8pack_mm});
  t.push_back({.name = "_convert_weight_to_int4pack", .lower = lower_convert_weight_to_int4pack});
  // Its Meta kernel takes only fake tensors.
  t.push_back({.name = "_weight_int4pack_mm", .lower = lower_weight_int4pack_mm, .no_meta = true});
  add_grouped_mm(t);
}

}  // namespace torch_tpu::ops
