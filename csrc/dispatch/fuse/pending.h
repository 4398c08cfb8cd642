// Fused Eager: calls are recorded into a trace per device and launched in larger programs. Any
// thread may record and launch: a mutex guards the trace (held for a fraction of a microsecond,
// never while running), another one keeps launches of a device in order.
#pragma once

#include "csrc/base/env.h"
#include "csrc/base/journal.h"
#include "csrc/dispatch/call/frame.h"
#include "csrc/trace/planner.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

using base::journal::Cut;

// Adds the call to the trace of its device; its results are pending values.
void record_call(Frame& frame, trace::ProgramPtr program, c10::Stack* stack);

// Launches what is pending. Throws the first error of a call that could not be run; the results of
// that call, and of those that depend on it, throw it again when read. All others are there.
void launch_pending(int device, Cut why);
void launch_all(Cut why);

// When programs are compiled; process-wide.
base::CompileWhen compile_when();
void set_compile_when(base::CompileWhen when);
trace::PlannerLimits planner_limits(int device);
void set_planner_limits(const trace::PlannerLimits& limits);  // of all devices

// Makes pending values launch when they are read. Called once, at import.
void register_fused();

}  // namespace torch_tpu::dispatch
