// Violations in words, and where they are raised: by the call itself where its flags are ready at
// once (XLA:CPU's small programs), else by each read of a value that depends on them, and by
// synchronize() in the thread that issued the call. Which values those are: trace/flags.h.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "csrc/trace/flags.h"
#include "csrc/trace/value.h"

namespace torch_tpu::device {

// The flags of a run. Whoever issued its calls hears of violations at the next synchronize() at the
// latest.
trace::FlagsPtr make_flags(std::vector<pjrt::Buffer> buffers, trace::Flags::Places places,
                           trace::Flags::Owner program);

// For a call that has not returned: throws the first violation (c10::IndexError, or c10::Error for
// a RuntimeError) that is known by now. Those of linear algebra are waited for, as PyTorch does on
// every device.
void raise_known(trace::Flags& flags);

// Before the elements are read, or go into memory that is sound so far: waits for the flags and
// throws the first violation.
void raise_violations(const trace::GuardsPtr& guards);

// The violations, and errors of launches, of calls that this thread issued and that nobody was told
// of: throws the first.
void raise_unreported();
// What a call of another thread failed with, for that thread's raise_unreported().
void note_error(uint32_t thread, std::exception_ptr error);

// For tests: no violation is known before its call returns, as on a device that is not the host.
void set_late_checks(bool on);

// The violation as an exception.
std::exception_ptr violation(trace::Flags& flags, size_t index);

}  // namespace torch_tpu::device
