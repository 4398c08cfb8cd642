// Index lists before a call is keyed: host index tensors move to the device. A mask alone is left
// to the program, which counts its hits itself; beside other indices it becomes the integer indices
// of its hits, since their number decides how the indices broadcast.
#pragma once

#include "csrc/dispatch/call/op.h"

namespace torch_tpu::dispatch {

// Rewrites the argument `indices` on the stack where needed; for entries marked expands_masks.
void expand_masks(const Op& op, c10::Stack* stack);

// A mask was left to the program, so no Meta kernel knows the size of the result.
bool holds_mask(const Op& op, const c10::IValue* args);

}  // namespace torch_tpu::dispatch
