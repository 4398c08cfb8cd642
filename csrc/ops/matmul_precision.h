// How exactly products and convolutions are computed. Steered by
// torch.set_float32_matmul_precision; the dispatcher makes the setting part of every program's
// key, so a change takes effect with the next call and old programs stay valid.
#pragma once

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

// For operands of `dtype`. Half types need no more than the default, which on a TPU multiplies in
// bf16; f32 and wider follow the setting ("highest" unless the user lowers it).
Precision matmul_precision(DType dtype);

}  // namespace torch_tpu::ops
