// The execution mode of the process, and what Debug Eager adds to an error.
#pragma once

#include <atomic>
#include <string>

#include "csrc/base/env.h"
#include "csrc/trace/trace.h"

namespace torch_tpu::dispatch {

// Process-wide: autograd's threads must run in the mode of the code that started backward.
base::Mode mode();
void set_mode(base::Mode mode);

bool debug_nans();
void set_debug_nans(bool on);

// Gives "file.py:12 in train: loss = f(x)" for the calling thread's innermost user frame, or "".
// Set by the Python bindings, since nothing below them knows Python.
using LocationHook = std::string (*)();
void set_location_hook(LocationHook hook);
std::string python_location();

// Where the calling thread's user code is, for a call that runs later. Cheap, takes no GIL. Set by
// the Python bindings; empty without.
using CaptureLine = trace::IssueLine (*)() noexcept;
void set_capture_line(CaptureLine capture);
trace::IssueLine capture_line() noexcept;

}  // namespace torch_tpu::dispatch
