// Checks of indices and other values that programs report through a flag. Where the flag is ready
// at once (XLA:CPU's small programs) the error is raised by the op itself, else at the next read or
// synchronize.
#pragma once

#include "csrc/ops/source.h"
#include "csrc/trace/value.h"

namespace torch_tpu::device {

// Takes a 0-d s64 flag. May throw (c10::IndexError, or c10::Error for a RuntimeError) now.
void check_flag(trace::ValuePtr flag, const ops::ValueCheck& check);

// Waits for the flags of earlier calls and throws the first violation.
void raise_pending_checks(int device);

}  // namespace torch_tpu::device
