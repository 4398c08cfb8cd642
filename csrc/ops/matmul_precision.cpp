#include "csrc/ops/matmul_precision.h"

#include <ATen/Context.h>

namespace torch_tpu::ops {
namespace {

Precision float32_precision() {
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGHEST:
      return Precision::kHighest;
    case at::Float32MatmulPrecision::HIGH:
      return Precision::kHigh;
    case at::Float32MatmulPrecision::MEDIUM:
      return Precision::kDefault;
  }
  return Precision::kHighest;
}

}  // namespace

Precision matmul_precision(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kC64:
      return float32_precision();
    case DType::kF64:
    case DType::kC128:
      return Precision::kHighest;
    default:
      return Precision::kDefault;
  }
}

}  // namespace torch_tpu::ops
