#include "csrc/ops/target.h"

namespace torch_tpu::ops {
namespace {

thread_local Target current;

}  // namespace

const Target& target() { return current; }

TargetScope::TargetScope(const Target& target) : previous_(current) { current = target; }
TargetScope::~TargetScope() { current = previous_; }

}  // namespace torch_tpu::ops
