#include "csrc/ops/matmul_precision.h"

#include "csrc/ops/target.h"

namespace torch_tpu::ops {
Precision matmul_precision(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kC64:
      return target().f32_precision;
    case DType::kF64:
    case DType::kC128:
      return Precision::kHighest;
    default:
      return Precision::kDefault;
  }
}

}  // namespace torch_tpu::ops
