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
  kBF16,
  kF16,
  kF32,
  kF64,
  kC64,
  kC128,
};

using Dims = std::vector<int64_t>;

// MLIR spelling: i1, i8 ... ui64, f8E4M3FN, bf16, complex<f32>.
std::string_view dtype_name(DType dtype);
int64_t dtype_bytes(DType dtype);
bool is_float(DType dtype);  // real floating point, float8 included
bool is_complex(DType dtype);
bool is_integer(DType dtype);   // signed or unsigned, not bool
bool is_unsigned(DType dtype);  // unsigned integers, bool included
bool is_signed_integer(DType dtype);
DType real_of(DType complex_dtype);  // c64 -> f32; a real dtype is returned as it is
DType complex_of(DType real_dtype);  // f32 -> c64, f64 -> c128

// A ranked tensor type. `bounds` is empty for static types; otherwise it has one entry per
// dimension, the upper bound where dims[i] is dynamic (dims[i] == kDynamic) and kDynamic elsewhere.
inline constexpr int64_t kDynamic = -1;

struct Type {
  DType dtype = DType::kF32;
  Dims dims;
  Dims bounds;

  Type() = default;
  Type(DType dtype, Dims dims) : dtype(dtype), dims(std::move(dims)) {}

  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t numel() const;  // of a static type
  bool is_static() const { return bounds.empty(); }
  std::string str() const;  // tensor<2x3xf32>
  bool operator==(const Type&) const = default;
};

int64_t product(const Dims& dims);

}  // namespace torch_tpu::stablehlo
