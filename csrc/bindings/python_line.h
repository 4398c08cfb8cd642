// The Python line that issued an op: taken in nanoseconds and without the GIL when the op is
// issued, put into words only when an error needs it. Nothing here needs pybind11 or torch.
#pragma once

#include <cstddef>
#include <string>

#include "csrc/dispatch/call/mode.h"

namespace torch_tpu::bindings {

// The calling thread's innermost frame outside the torch and torch_tpu packages (or its innermost
// frame, when all are inside). Empty on a thread without Python frames, while the interpreter ends,
// once kMaxPinnedCode code objects are known and this is none of them, and on a Python whose frames
// we cannot read. Call it with no lock held: a code object seen for the first time needs the GIL.
dispatch::IssueLine capture_line() noexcept;

// "file.py:12 in train: loss = f(x)", or "". Takes the GIL.
std::string describe_line(dispatch::IssueLine line);

// The same for the calling thread's line right now, through Python's public API. Takes the GIL.
std::string current_line();
// And for its innermost frame outside all installed packages, or "".
std::string user_line();

// Code objects kept alive forever so that an IssueLine stays valid.
constexpr size_t kMaxPinnedCode = 8192;
size_t pinned_code() noexcept;

}  // namespace torch_tpu::bindings
