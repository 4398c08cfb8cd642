// Changing the mode of the process and the options of its compiler.
#pragma once

#include "csrc/base/env.h"
#include "csrc/pjrt/option_overrides.h"

namespace torch_tpu::dispatch {

// Launches what Fused Eager has pending when it is left.
void change_mode(base::Mode mode);
// Calls from here on are compiled with these; launches what Fused Eager has pending, so that a
// program has calls of one kind. Throws the error of such a call, the options set even so.
void change_compiler_options(const pjrt::OptionOverrides& options);

}  // namespace torch_tpu::dispatch
