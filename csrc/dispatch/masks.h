// Index lists before a call is keyed: host index tensors move to the device. A mask alone is left
// to the program, which counts its hits itself; beside other indices it becomes the integer indices
// of its hits, since their number decides how the indices broadcast.
#pragma once

#include "csrc/dispatch/op.h"

namespace torch_tpu::dispatch {

// Rewrites the argument `indices` on the stack where needed; for entries marked expands_masks.
void expand_masks(const Op& op, c10::Stack* stack);

}  // namespace torch_tpu::dispatch
