// What low_bit.cpp and grouped_mm.cpp share, and how they enter the table (through matmul.cpp).
#pragma once

#include "csrc/ops/table.h"

namespace torch_tpu::ops {

bool is_float8(DType dtype);
// In f32. 8-bit floats are exact in bf16, whose products a TPU adds up in f32.
Value float8_dot(const Value& a, const Value& b, const stablehlo::DotDims& dims);

void add_low_bit(Entries& t);
void add_grouped_mm(Entries& t);

}  // namespace torch_tpu::ops
