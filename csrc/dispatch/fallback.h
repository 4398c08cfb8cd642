// Ops the table does not have: they run on the CPU, correct but slow, and are counted.
#pragma once

#include <map>
#include <string>

#include "csrc/base/env.h"

namespace torch_tpu::dispatch {

struct FallbackCount {
  int64_t calls = 0;
  double seconds = 0;
};

std::map<std::string, FallbackCount> fallback_counts();
void reset_fallback_counts();
void set_fallback(base::Fallback what);
base::Fallback get_fallback();

}  // namespace torch_tpu::dispatch
