// Small pieces that several families share: dims, promotion, reductions in a wider type.
#include "csrc/ops/helpers.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "csrc/ops/target.h"

namespace torch_tpu::ops {
namespace {

// Half types are reduced in f32 and rounded once at the end, as CPU's kernels do.
Value reduce_wide(const Value& x, const Dims& dims, bool keepdim, double init, Reduction kind) {
  Builder& b = x.builder();
  Value result = x;
  if (!dims.empty()) {
    const DType wide = opmath(x.dtype());
    result = b.reduce(b.convert(x, wide), b.scalar(init, wide), dims, kind);
    result = b.convert(result, x.dtype());
  }
  return keepdim ? b.reshape(result, keep_dims(x.dims(), dims)) : result;
}

// Whether the target's own maximum would do for NaN in values of this dtype.
bool own_extremes(DType dtype) { return !is_float(dtype) || target().extremes_keep_nan; }

// For targets whose own extremes drop NaN. Half types in f32, which XLA:CPU vectorizes; widening
// loses nothing. A reduction to one number it would run on one thread, element by element, so
// that takes two steps.
Value reduce_nan_extreme(const Value& x, const Dims& dims, Reduction kind) {
  constexpr int64_t kRows = 64;
  Builder& b = x.builder();
  const DType t = opmath(x.dtype());
  const Value start = kind == Reduction::kMax ? b.lowest(t) : b.highest(t);
  const stablehlo::Region body = nan_extreme_body(kind);
  Value wide = b.convert(x, t);
  Dims over = dims;
  if (static_cast<int64_t>(dims.size()) == x.rank() && x.type().is_static() &&
      x.numel() > kRows * kRows && x.numel() % kRows == 0) {
    wide = b.reduce({b.reshape(wide, {kRows, x.numel() / kRows})}, {start}, {1}, body)[0];
    over = {0};
  }
  return b.convert(b.reduce({wide}, {start}, over, body)[0], x.dtype());
}

Value reduce_extreme(const Value& x, const Dims& dims, bool keepdim, Reduction kind, bool loose) {
  Builder& b = x.builder();
  Value result = x;
  if (!dims.empty() && (loose || own_extremes(x.dtype()))) {
    const DType t = x.dtype();
    result = b.reduce(x, kind == Reduction::kMax ? b.lowest(t) : b.highest(t), dims, kind);
  } else if (!dims.empty()) {
    result = reduce_nan_extreme(x, dims, kind);
  }
  return keepdim ? b.reshape(result, keep_dims(x.dims(), dims)) : result;
}

// `a` where it wins or is NaN; else `b`, NaN or not.
Value nan_extreme(const Value& a, const Value& b, Compare wins) {
  Builder& builder = a.builder();
  const Value take = builder.or_(builder.compare(wins, a, b), builder.ne(a, a));
  return builder.select(take, a, b);
}

}  // namespace

DType opmath(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3FN:
    case DType::kF8E5M2:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ:
    case DType::kBF16:
    case DType::kF16:
      return DType::kF32;
    default:
      return dtype;
  }
}

DType float_math(DType dtype) {
  return is_float(dtype) || is_complex(dtype) ? opmath(dtype) : DType::kF32;
}

int64_t wrap_dim(int64_t dim, int64_t rank) {
  const int64_t n = std::max<int64_t>(rank, 1);
  if (dim < -n || dim >= n) {
    throw std::invalid_argument("[wrap_dim] expected a dimension in [" + std::to_string(-n) + ", " +
                                std::to_string(n - 1) + "], got " + std::to_string(dim));
  }
  return dim < 0 ? dim + n : dim;
}

Dims wrap_dims(const Dims& dims, int64_t rank, bool empty_is_all) {
  if (rank == 0) {
    return {};  // dim 0 of a scalar: nothing to reduce
  }
  if (dims.empty()) {
    return empty_is_all ? range(rank) : Dims{};
  }
  Dims wrapped;
  for (int64_t dim : dims) {
    wrapped.push_back(wrap_dim(dim, rank));
  }
  std::sort(wrapped.begin(), wrapped.end());
  wrapped.erase(std::unique(wrapped.begin(), wrapped.end()), wrapped.end());
  return wrapped;
}

Dims range(int64_t n) {
  Dims dims(n);
  for (int64_t i = 0; i < n; ++i) {
    dims[i] = i;
  }
  return dims;
}

Dims without(const Dims& all, const Dims& dropped_positions) {
  Dims kept;
  for (int64_t i = 0; i < static_cast<int64_t>(all.size()); ++i) {
    if (std::find(dropped_positions.begin(), dropped_positions.end(), i) ==
        dropped_positions.end()) {
      kept.push_back(all[i]);
    }
  }
  return kept;
}

Dims keep_dims(const Dims& shape, const Dims& reduced) {
  Dims dims = shape;
  for (int64_t dim : reduced) {
    dims.at(dim) = 1;
  }
  return dims;
}

namespace {

// Between the bits of two f16 and a complex64.
Value unpack_complex32(const Value& bits) {
  Builder& b = bits.builder();
  const Dims& dims = bits.dims();
  Dims pairs = dims;
  pairs.push_back(2);
  const Value parts = b.convert(b.bitcast_convert(bits, Type(DType::kF16, pairs)), DType::kF32);
  const int64_t last = bits.rank();
  return b.complex(b.reshape(b.slice_dim(parts, last, 0, 1), dims),
                   b.reshape(b.slice_dim(parts, last, 1, 2), dims));
}

Value pack_complex32(const Value& x) {
  Builder& b = x.builder();
  Dims single = x.dims();
  single.push_back(1);
  const auto half = [&](const Value& part) {
    return b.reshape(b.convert(part, DType::kF16), single);
  };
  const Value parts = b.concatenate({half(b.real(x)), half(b.imag(x))}, x.rank());
  return b.bitcast_convert(parts, Type(DType::kC32, x.dims()));
}

}  // namespace

Value cast(const Value& x, DType dtype) {
  Builder& b = x.builder();
  const DType from = x.dtype();
  if (from == dtype) {
    return x;
  }
  if (from == DType::kC32) return cast(unpack_complex32(x), dtype);
  if (dtype == DType::kC32) return pack_complex32(cast(x, DType::kC64));
  if (dtype == DType::kBool) {
    return b.ne(x, zeros_like(x));  // NaN is true
  }
  if (is_complex(from) && !is_complex(dtype)) {
    return cast(b.real(x), dtype);
  }
  if (is_complex(dtype) && !is_complex(from)) {
    const Value re = b.convert(x, real_of(dtype));
    return b.complex(re, zeros_like(re));
  }
  // Through s32, a negative float wraps around in a narrow integer as it does on CPU; the direct
  // conversion would saturate.
  if (is_float(from) && is_integer(dtype) && dtype_bytes(dtype) < 4) {
    return b.convert(b.convert(x, DType::kS32), dtype);
  }
  // This float8 has no infinity: PyTorch makes the largest number of what is larger, XLA NaN.
  if (dtype == DType::kF8E4M3FN) {
    const Value wide = cast(x, DType::kF32);
    return b.convert(nan_minimum(nan_maximum(wide, b.like(wide, -448)), b.like(wide, 448)), dtype);
  }
  return b.convert(x, dtype);
}

Value zeros_like(const Value& x) { return x.builder().like(x, 0); }
Value ones_like(const Value& x) { return x.builder().like(x, 1); }

Value full(Builder& b, const Number& value, DType dtype, const Dims& dims) {
  return b.splat(value, Type(dtype, dims));
}

Value count_of(const Value& x, const Dims& dims, DType dtype) {
  Builder& b = x.builder();
  int64_t known = 1;
  Value varying;
  for (int64_t d : dims) {
    if (!x.type().varies(d)) {
      known *= x.dims().at(d);
      continue;
    }
    // Large products would not fit 32 bits.
    const Value n = cast(b.count(x, d), is_integer(dtype) ? DType::kS64 : dtype);
    varying = varying.defined() ? varying * n : n;
  }
  if (!varying.defined()) return b.scalar(known, dtype);
  return cast(known == 1 ? varying : varying * known, dtype);
}

Value divide_by_count(const Value& sum, const Value& x, const Dims& dims) {
  int64_t known = 1;
  for (int64_t d : dims) {
    if (x.type().varies(d)) {
      const Value count = count_of(x, dims, sum.dtype());
      return sum / sum.builder().broadcast_to(count, sum.dims());
    }
    known *= x.dims().at(d);
  }
  return sum / known;
}

Value size_of(const Value& x, int64_t dim, DType dtype) { return count_of(x, {dim}, dtype); }

void expect_whole(const Value& x, const Dims& dims, std::string_view why) {
  for (int64_t d : dims) {
    if (!x.type().varies(d)) continue;
    throw stablehlo::Unproven("[" + std::string(why) + "] a dimension that varies, " +
                              x.type().str());
  }
}

Dims broadcast_shape(const Dims& a, const Dims& b) {
  const Dims& longer = a.size() >= b.size() ? a : b;
  const Dims& shorter = a.size() >= b.size() ? b : a;
  Dims dims = longer;
  const size_t offset = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& dim = dims[offset + i];
    if (dim == 1) {
      dim = shorter[i];
    } else if (shorter[i] != 1 && shorter[i] != dim) {
      throw std::invalid_argument("[broadcast_shape] expected equal sizes or 1, got " +
                                  std::to_string(dim) + " and " + std::to_string(shorter[i]));
    }
  }
  return dims;
}

std::pair<Value, Value> broadcast2(const Value& a, const Value& b) {
  const Dims dims = broadcast_shape(a.dims(), b.dims());
  return {a.builder().broadcast_to(a, dims), b.builder().broadcast_to(b, dims)};
}

Value reduce_sum(const Value& x, const Dims& dims, bool keepdim) {
  return reduce_wide(x, dims, keepdim, 0, Reduction::kAdd);
}

Value reduce_prod(const Value& x, const Dims& dims, bool keepdim) {
  return reduce_wide(x, dims, keepdim, 1, Reduction::kMul);
}

Value reduce_max(const Value& x, const Dims& dims, bool keepdim) {
  return reduce_extreme(x, dims, keepdim, Reduction::kMax, /*loose=*/false);
}

Value reduce_min(const Value& x, const Dims& dims, bool keepdim) {
  return reduce_extreme(x, dims, keepdim, Reduction::kMin, /*loose=*/false);
}

Value reduce_max_loose(const Value& x, const Dims& dims, bool keepdim) {
  return reduce_extreme(x, dims, keepdim, Reduction::kMax, /*loose=*/true);
}

Value nan_maximum(const Value& a, const Value& b) {
  return own_extremes(a.dtype()) ? a.builder().maximum(a, b) : nan_extreme(a, b, Compare::kGt);
}

Value nan_minimum(const Value& a, const Value& b) {
  return own_extremes(a.dtype()) ? a.builder().minimum(a, b) : nan_extreme(a, b, Compare::kLt);
}

stablehlo::Region nan_extreme_body(Reduction kind) {
  return [kind](const Values& v) -> Values {
    return {kind == Reduction::kMax ? nan_maximum(v[0], v[1]) : nan_minimum(v[0], v[1])};
  };
}

Value reduce_mean(const Value& x, const Dims& dims, bool keepdim) {
  Builder& b = x.builder();
  const Value sum = reduce_sum(b.convert(x, opmath(x.dtype())), dims, keepdim);
  return b.convert(divide_by_count(sum, x, dims), x.dtype());
}

Value sum_to(const Value& x, const Dims& shape) {
  if (x.dims() == shape) {
    return x;
  }
  Dims dims;
  const int64_t offset = x.rank() - static_cast<int64_t>(shape.size());
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i < offset || (shape[i - offset] == 1 && x.dims()[i] != 1)) {
      dims.push_back(i);
    }
  }
  return x.builder().reshape(reduce_sum(x, dims), shape);
}

Value expand_back(const Value& reduced, const Dims& shape, const Dims& positions) {
  const Dims kept = without(range(static_cast<int64_t>(shape.size())), positions);
  return reduced.builder().broadcast_in_dim(reduced, shape, kept);
}

Value matmul2(const Value& a, const Value& b) {
  Builder& builder = a.builder();
  const Dims a_batch(a.dims().begin(), a.dims().end() - 2);
  const Dims b_batch(b.dims().begin(), b.dims().end() - 2);
  const Dims batch = broadcast_shape(a_batch, b_batch);
  const auto expand = [&](const Value& x) {
    Dims dims = batch;
    dims.insert(dims.end(), x.dims().end() - 2, x.dims().end());
    return builder.broadcast_to(x, dims);
  };
  const int64_t rank = static_cast<int64_t>(batch.size());
  stablehlo::DotDims dims;
  dims.lhs_batch = dims.rhs_batch = range(rank);
  dims.lhs_contracting = {rank + 1};
  dims.rhs_contracting = {rank};
  const DType t = a.dtype();
  // Half types lose nothing at default precision; f32 would be rounded to bf16 on a TPU.
  const Precision precision = dtype_bytes(t) >= 4 ? Precision::kHighest : Precision::kDefault;
  const Value product = builder.dot_general(expand(a), expand(b), dims, opmath(t), precision);
  return builder.convert(product, t);
}

}  // namespace torch_tpu::ops
