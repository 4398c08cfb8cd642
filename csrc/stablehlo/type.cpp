// Element type facts and the MLIR spelling of tensor types.
#include "csrc/stablehlo/type.h"

#include <stdexcept>

namespace torch_tpu::stablehlo {
namespace {

struct DTypeInfo {
  std::string_view name;
  int64_t bytes;
};

// In the order of DType.
constexpr DTypeInfo kInfo[] = {
    {"i1", 1},     {"i8", 1},         {"i16", 2},          {"i32", 4},           {"i64", 8},
    {"ui8", 1},    {"ui16", 2},       {"ui32", 4},         {"ui64", 8},          {"f8E4M3FN", 1},
    {"f8E5M2", 1}, {"f8E4M3FNUZ", 1}, {"f8E5M2FNUZ", 1},   {"bf16", 2},          {"f16", 2},
    {"f32", 4},    {"f64", 8},        {"complex<f32>", 8}, {"complex<f64>", 16}, {"ui32", 4},
};

}  // namespace

std::string_view dtype_name(DType dtype) { return kInfo[static_cast<int>(dtype)].name; }
int64_t dtype_bytes(DType dtype) { return kInfo[static_cast<int>(dtype)].bytes; }

bool is_float(DType dtype) { return dtype >= DType::kF8E4M3FN && dtype <= DType::kF64; }
bool is_complex(DType dtype) { return dtype == DType::kC64 || dtype == DType::kC128; }
bool is_integer(DType dtype) { return dtype >= DType::kS8 && dtype <= DType::kU64; }
bool is_signed_integer(DType dtype) { return dtype >= DType::kS8 && dtype <= DType::kS64; }

bool is_unsigned(DType dtype) {
  return dtype == DType::kBool || (dtype >= DType::kU8 && dtype <= DType::kU64);
}

DType real_of(DType complex_dtype) {
  if (complex_dtype == DType::kC64) return DType::kF32;
  if (complex_dtype == DType::kC128) return DType::kF64;
  return complex_dtype;
}

DType complex_of(DType real_dtype) {
  if (real_dtype == DType::kF32) return DType::kC64;
  if (real_dtype == DType::kF64) return DType::kC128;
  if (is_complex(real_dtype)) return real_dtype;
  throw std::invalid_argument("[complex_of] expected f32 or f64, got " +
                              std::string(dtype_name(real_dtype)));
}

int64_t product(const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

int64_t Type::numel() const { return product(dims); }

std::string Type::str() const {
  std::string out = "tensor<";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (varies(static_cast<int64_t>(i))) out += "<=";
    out += std::to_string(dims[i]);
    out += 'x';
  }
  out += dtype_name(dtype);
  out += '>';
  return out;
}

}  // namespace torch_tpu::stablehlo
