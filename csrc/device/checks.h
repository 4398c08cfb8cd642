// Checks of indices and other values that programs report through a flag. Where the flag is ready
// at once (XLA:CPU's small programs) the error is raised by the op itself, else at the next read or
// synchronize.
#pragma once

#include <span>
#include <string>

#include <c10/util/SmallVector.h>

#include "csrc/ops/source.h"
#include "csrc/trace/trace.h"
#include "csrc/trace/value.h"

namespace torch_tpu::device {

// Where a flag comes from. The pointers lead into a program.
struct FlagSource {
  const ops::ValueCheck* check;
  const std::string* op;  // null: the call has not returned yet, so its text need not name it
  trace::IssueLine line;
};
using FlagSources = c10::SmallVector<FlagSource, 2>;
using Owner = c10::intrusive_ptr<c10::intrusive_ptr_target>;  // of the program

struct Flag {
  trace::ValuePtr value;  // s64[]
  const ops::ValueCheck* check;
};
// Takes the flags of a program. May throw (c10::IndexError, or c10::Error for a RuntimeError) now;
// of several violations the first, whichever flag is ready first.
void check_flags(std::span<Flag> flags, const Owner& program);

// The same for s64 flags, one per source, of calls that returned long ago: never throws a violation
// itself, and its text names the call.
void queue_flags(trace::ValuePtr flags, FlagSources sources, Owner program);

// Gives " at file.py:12 in f" for a line, or "". Set once, by the bindings.
using LineText = std::string (*)(const trace::IssueLine& line);
void set_line_text(LineText text);
std::string line_text(const trace::IssueLine& line);

// Waits for the flags of earlier calls and throws the first violation.
void raise_pending_checks(int device);

}  // namespace torch_tpu::device
