// How exactly products and convolutions are computed. Steered by
// torch.set_float32_matmul_precision; the setting is part of every program's key, so a change
// takes effect with the next call and old programs stay valid.
#pragma once

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

// For operands of `dtype`. Half types need no more than the default, which on a TPU multiplies in
// bf16; f32 and wider follow the setting ("highest" unless the user lowers it).
Precision matmul_precision(DType dtype);

// The setting as a word for the program key.
uint64_t matmul_precision_key();

}  // namespace torch_tpu::ops
