// For whoever runs a program: tells torch.profiler when the device is done with it.
#pragma once

#include "csrc/pjrt/buffer.h"

namespace torch_tpu::dispatch {

// The span this thread is in ends, on the device, when `out` is ready. Only while a profiler runs
// (base::journal::traced).
void profile_execution(PJRT_Buffer* out, int device) noexcept;

}  // namespace torch_tpu::dispatch
