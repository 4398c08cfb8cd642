// What differs between the compilers a program may go to, as far as lowerings must care. The
// default describes the TPU's. Whoever lowers for another one says so for the time it takes.
#pragma once

#include <cstdint>

#include "csrc/stablehlo/attributes.h"

namespace torch_tpu::ops {

// How attention gets by without holding all its scores, once they are many.
enum class AttentionForm : uint8_t {
  kPlain,   // it does not (for tests): all scores at once
  kBlocks,  // a loop over blocks of scores
  kCudnn,   // NVIDIA's kernel for what that can do, else as kBlocks
};

struct Target {
  // stablehlo.maximum and minimum give NaN when an operand is NaN. XLA:CPU's do not: the form that
  // does costs it a factor of ten in reductions.
  bool extremes_keep_nan = true;
  // A dot of two s8 operands is right and fast. XLA:CUDA's gives twice the product for many shapes,
  // XLA:CPU's takes twenty times as long as one of f32.
  bool has_s8_dot = true;
  // A product of half types is asked for in that type, and the bias is added in it. XLA:CUDA has
  // kernels that do both before they round once, but for f32 results writes twice the bytes.
  bool rounds_half_products = false;
  // Rows of half types whose length is no multiple of 8 are padded for large products: cuBLAS reads
  // others at a third of the speed.
  bool aligns_half_rows = false;
  // Of products of f32: the user's setting when the op was called. An op may be lowered later.
  stablehlo::Precision f32_precision = stablehlo::Precision::kHighest;
  AttentionForm attention = AttentionForm::kBlocks;
  // The sides of the blocks; 0: chosen by the shapes. Given (in tests), the form above is taken
  // however few the scores are.
  int64_t attention_block = 0;
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
