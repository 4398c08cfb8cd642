// Whom ops called now are lowered for: what the running platform's compiler needs, and the settings
// at the time of the call.
#pragma once

#include <cstdint>
#include <string>

#include "csrc/ops/target.h"

namespace torch_tpu::dispatch {

ops::Target current_target();

// For tests: the form attention takes, with blocks of this side ("auto" and 0: by the platform and
// the shapes). Process-wide.
void set_attention_form(const std::string& form, int64_t block);
// What keys must hold of it; below 2^24, 0 for "auto".
uint64_t attention_word() noexcept;

}  // namespace torch_tpu::dispatch
