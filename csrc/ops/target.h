// What differs between the compilers a program may go to, as far as lowerings must care. The
// default describes the TPU's. Whoever lowers for another one says so for the time it takes.
#pragma once

namespace torch_tpu::ops {

struct Target {
  // stablehlo.maximum and minimum give NaN when an operand is NaN. XLA:CPU's do not: the form that
  // does costs it a factor of ten in reductions.
  bool extremes_keep_nan = true;
  // A dot of two s8 operands gives the product. XLA:CUDA's gives twice that for many shapes.
  bool s8_dot_is_exact = true;
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
