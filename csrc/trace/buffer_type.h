// Element types as PJRT names them.
#pragma once

#include "csrc/pjrt/api.h"
#include "csrc/stablehlo/type.h"

namespace torch_tpu::trace {

PJRT_Buffer_Type buffer_type(stablehlo::DType dtype);

}  // namespace torch_tpu::trace
