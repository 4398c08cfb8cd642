// Ops the table does not have: they run on the CPU, correct but slow, and are counted.
#pragma once

#include <map>
#include <string>

#include <ATen/core/stack.h>

#include "csrc/base/env.h"

namespace c10 {
class OperatorHandle;
}

namespace torch_tpu::dispatch {

struct FallbackCount {
  int64_t calls = 0;
  double seconds = 0;
};

// Runs the op on copies of its arguments; `reason` is told with the first warning.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack, const std::string& reason);

std::map<std::string, FallbackCount> fallback_counts();
void reset_fallback_counts();
void set_fallback(base::Fallback what);
base::Fallback get_fallback();

}  // namespace torch_tpu::dispatch
