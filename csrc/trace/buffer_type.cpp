#include "csrc/trace/buffer_type.h"

namespace torch_tpu::trace {

PJRT_Buffer_Type buffer_type(stablehlo::DType dtype) {
  using stablehlo::DType;
  switch (dtype) {
    case DType::kBool:
      return PJRT_Buffer_Type_PRED;
    case DType::kS8:
      return PJRT_Buffer_Type_S8;
    case DType::kS16:
      return PJRT_Buffer_Type_S16;
    case DType::kS32:
      return PJRT_Buffer_Type_S32;
    case DType::kS64:
      return PJRT_Buffer_Type_S64;
    case DType::kU8:
      return PJRT_Buffer_Type_U8;
    case DType::kU16:
      return PJRT_Buffer_Type_U16;
    case DType::kU32:
      return PJRT_Buffer_Type_U32;
    case DType::kU64:
      return PJRT_Buffer_Type_U64;
    case DType::kF8E4M3FN:
      return PJRT_Buffer_Type_F8E4M3FN;
    case DType::kF8E5M2:
      return PJRT_Buffer_Type_F8E5M2;
    case DType::kF8E4M3FNUZ:
      return PJRT_Buffer_Type_F8E4M3FNUZ;
    case DType::kF8E5M2FNUZ:
      return PJRT_Buffer_Type_F8E5M2FNUZ;
    case DType::kBF16:
      return PJRT_Buffer_Type_BF16;
    case DType::kF16:
      return PJRT_Buffer_Type_F16;
    case DType::kF32:
      return PJRT_Buffer_Type_F32;
    case DType::kF64:
      return PJRT_Buffer_Type_F64;
    case DType::kC64:
      return PJRT_Buffer_Type_C64;
    case DType::kC128:
      return PJRT_Buffer_Type_C128;
    case DType::kC32:
      return PJRT_Buffer_Type_U32;
  }
  return PJRT_Buffer_Type_INVALID;
}

}  // namespace torch_tpu::trace
