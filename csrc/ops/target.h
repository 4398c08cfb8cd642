// What differs between the compilers a program may go to, as far as lowerings must care. The
// default describes the TPU's. Whoever lowers for another one says so for the time it takes.
#pragma once

#include "csrc/stablehlo/attributes.h"

namespace torch_tpu::ops {

struct Target {
  // stablehlo.maximum and minimum give NaN when an operand is NaN. XLA:CPU's do not: the form that
  // does costs it a factor of ten in reductions.
  bool extremes_keep_nan = true;
  // A dot of two s8 operands is right and fast. XLA:CUDA's gives twice the product for many shapes,
  // XLA:CPU's takes twenty times as long as one of f32.
  bool has_s8_dot = true;
  // Of products of f32: the user's setting when the op was called. An op may be lowered later.
  stablehlo::Precision f32_precision = stablehlo::Precision::kHighest;
};

const Target& target();

// Sets the target of the calling thread.
class TargetScope {
 public:
  explicit TargetScope(const Target& target);
  ~TargetScope();
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;

 private:
  Target previous_;
};

}  // namespace torch_tpu::ops
