// Element types and tensor types of StableHLO. No torch, no PJRT.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace torch_tpu::stablehlo {

enum class DType : uint8_t {
  kBool,
  kS8,
  kS16,
  kS32,
  kS64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF8E4M3FN,
  kF8E5M2,
  kF8E4M3FNUZ,  // these two have no infinity and no -0
  kF8E5M2FNUZ,
  kBF16,
  kF16,
  kF32,
  kF64,
  kC64,
  kC128,
  // A complex number of two f16, as it is stored: XLA has no such type, so its bits are a ui32, the
  // real part in the lower half. Nothing computes in it (compute_dtype in csrc/ops/call.h).
  kC32,
};

using Dims = std::vector<int64_t>;

// MLIR spelling: i1, i8 ... ui64, f8E4M3FN, bf16, complex<f32>.
std::string_view dtype_name(DType dtype);
int64_t dtype_bytes(DType dtype);
bool is_float(DType dtype);     // real floating point, float8 included
bool is_complex(DType dtype);   // what computes as such: c64 and c128
bool is_integer(DType dtype);   // signed or unsigned, not bool
bool is_unsigned(DType dtype);  // unsigned integers, bool included
bool is_signed_integer(DType dtype);
DType real_of(DType complex_dtype);  // c64 -> f32; a real dtype is returned as it is
DType complex_of(DType real_dtype);  // f32 -> c64, f64 -> c128

// A ranked tensor type. Shapes are static: `dims` is what is allocated. Of a dimension that
// *varies* only some elements count, and how many is known when the program runs; the others are
// undefined. `axes` is empty where nothing varies; otherwise it has one entry per dimension, the
// number of an axis of the Builder (csrc/stablehlo/axis.h) or kWhole. The text of a type does not
// show it.
inline constexpr int32_t kWhole = -1;
using Axes = std::vector<int32_t>;

struct Type {
  DType dtype = DType::kF32;
  Dims dims;
  Axes axes;

  Type() = default;
  Type(DType dtype, Dims dims) : dtype(dtype), dims(std::move(dims)) {}

  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t numel() const;  // of what is allocated
  bool is_static() const { return axes.empty(); }
  bool varies(int64_t dim) const {
    return !axes.empty() && axes[static_cast<size_t>(dim)] != kWhole;
  }
  std::string str() const;  // tensor<2x3xf32>
  bool operator==(const Type&) const = default;
};

int64_t product(const Dims& dims);

}  // namespace torch_tpu::stablehlo
