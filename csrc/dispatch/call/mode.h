// The execution mode of the process, and what Debug Eager adds to an error.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "csrc/base/env.h"
#include "csrc/trace/trace.h"

namespace torch_tpu::dispatch {

// Process-wide: autograd's threads must run in the mode of the code that started backward.
base::Mode mode();
// Only notes it; change_mode() (change_mode.h) also launches what the old mode left pending.
void note_mode(base::Mode mode);

bool debug_nans();
void set_debug_nans(bool on);

// Gives "file.py:12 in train: loss = f(x)" for the calling thread's innermost user frame, or "".
// Set by the Python bindings, since nothing below them knows Python.
using LocationHook = std::string (*)();
void set_location_hook(LocationHook hook);
std::string python_location();

// The Python line that issued an op which runs later: a few words to keep with the op, put into the
// same words as above when they are needed. Empty where no Python frame issued it.
using trace::IssueLine;

// Set by the Python bindings as well. `capture` needs no GIL, but may take it: hold no lock.
struct IssueLineHooks {
  IssueLine (*capture)() noexcept = nullptr;
  std::string (*describe)(IssueLine) = nullptr;
};
void set_issue_line_hooks(IssueLineHooks hooks);
IssueLine issue_line() noexcept;
std::string describe(IssueLine line);

}  // namespace torch_tpu::dispatch
