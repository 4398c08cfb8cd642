// Fused Eager: calls are issued into a trace per device and launched in larger programs. Any thread
// may issue and launch: a mutex guards the trace (held for a fraction of a microsecond, never while
// running), another one keeps launches of a device in order.
#pragma once

#include "csrc/base/env.h"
#include "csrc/base/journal.h"
#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/run/results.h"
#include "csrc/trace/planner.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

using base::journal::Cut;

// Adds the call to the trace of its device; its results are pending values. False, and nothing has
// happened, when a part of the trace should be launched first: see make_room().
bool issue_call(Frame& frame, const trace::ProgramPtr& program, Results& results);
// Launches what stands in the way of the call. Throws c10::OutOfMemoryError when its results are
// past the limit even so. Without leases on cells.
void make_room(int device, const trace::Program& program);
// How frames of calls are to be made.
Frame::Writes fused_writes() noexcept;
// Whether a tensor that holds something may take over this value as it is.
bool shares_pending(const trace::DeviceValue& value) noexcept;

// Launches what is pending. Throws the first error of a call that this thread issued and that could
// not be run; the results of such calls, and of those that depend on them, throw it again when
// read. All others are there. Calls that found no room run again with the next launch.
void launch_pending(int device, Cut why);
void launch_all(Cut why);
// Before the host reads a value, which may be there already: launches what is pending if that is a
// program's worth. A step of training ends with such a read, and what follows belongs to the next.
void launch_at_read(int device);

// When programs are compiled; process-wide.
base::CompileWhen compile_when();
void set_compile_when(base::CompileWhen when);
trace::PlannerLimits planner_limits(int device);
void set_planner_limits(const trace::PlannerLimits& limits);  // of all devices

// Makes pending values launch when they are read. Called once, at import.
void register_fused();

}  // namespace torch_tpu::dispatch
