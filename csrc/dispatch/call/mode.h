// The execution mode of the process.
#pragma once

#include "csrc/base/env.h"
#include "csrc/trace/issue_line.h"

namespace torch_tpu::dispatch {

// Process-wide: autograd's threads must run in the mode of the code that started backward.
base::Mode mode();
// Only notes it; change_mode() (change_mode.h) also launches what the old mode left pending.
void note_mode(base::Mode mode);

bool debug_nans();
void set_debug_nans(bool on);

// Lines of the user's code, for errors and reports.
using trace::describe;
using trace::issue_line;
using trace::IssueLine;
using trace::python_location;

}  // namespace torch_tpu::dispatch
