// Changing the mode of the process.
#pragma once

#include "csrc/base/env.h"

namespace torch_tpu::dispatch {

// Launches what Fused Eager has pending when it is left.
void change_mode(base::Mode mode);

}  // namespace torch_tpu::dispatch
