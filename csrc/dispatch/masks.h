// Index lists before a call is keyed: host index tensors move to the device, masks become integer
// indices (their number decides the output's size, so they are read back once).
#pragma once

#include "csrc/dispatch/op.h"

namespace torch_tpu::dispatch {

// Rewrites the argument `indices` on the stack where needed; for entries marked expands_masks.
void expand_masks(const Op& op, c10::Stack* stack);

}  // namespace torch_tpu::dispatch
