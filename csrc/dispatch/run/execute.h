// Runs a program: arguments in, buffers out. For calls that run at once, for those that were issued
// earlier, and for compiled graphs.
#pragma once

#include <span>

#include <c10/util/SmallVector.h>

#include "csrc/base/journal.h"
#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/report/profile_execution.h"
#include "csrc/dispatch/run/outputs.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/program.h"
#include "csrc/trace/trace.h"

namespace torch_tpu::dispatch {

struct Execution {
  c10::SmallVector<PJRT_Buffer*, 12> args;  // the inputs' buffers; the rest is added by execute()
  std::span<const float> f32;
  std::span<const double> f64;
  std::span<const int64_t> s64;
  uint64_t rng[2] = {0, 0};           // seed and offset, for programs that draw
  c10::SmallVector<int64_t, 4> keep;  // inputs that the program may not take this time
  int64_t kept_bytes = 0;             // of those
  Outputs outs;
};

// Throws c10::OutOfMemoryError when there is no room; its text names the line, where given.
void execute(trace::Runnable& program, Execution& run, int device, trace::IssueLine line = {},
             base::journal::Kind kind = base::journal::Kind::kOpLaunch);

// The flags at the end of what a run gave, from `first` on; null when all are in order by now,
// which on XLA:CPU they nearly always are.
trace::FlagsPtr take_flags(const trace::RunnablePtr& program, Outputs& outs, size_t first,
                           const std::string* op = nullptr, trace::IssueLine line = {},
                           uint32_t thread = trace::this_thread());

// " at file.py:12 in f", or "".
std::string line_text(trace::IssueLine line);

// What running a program of any kind comes down to: room, the executable, and its errors. `where`
// gives the text for an out-of-memory error.
struct Needs {
  int64_t new_bytes = 0;
  int64_t temp_bytes = 0;
  std::span<const int64_t> keep = {};
};
template <typename Args, typename Where>
void run_executable(const pjrt::LoadedExecutable& executable, const Args& args, Outputs& outs,
                    int device, Needs needs, Where&& where) {
  trace::Ledger& ledger = trace::Ledger::of(device);
  // The limit holds inside programs too.
  ledger.check_room(needs.new_bytes + needs.temp_bytes);
  if (needs.temp_bytes > 0) ledger.note_run(needs.new_bytes + needs.temp_bytes);
  try {
    executable.execute(args.data(), args.size(), outs.prepare(executable.num_outputs()),
                       pjrt::Runtime::get().device(device), needs.keep);
  } catch (const pjrt::Error& error) {
    if (!error.is_out_of_memory()) throw;
    ledger.throw_out_of_memory(needs.new_bytes, "While running " + where() + ".");
  }
  if (base::journal::traced() && outs.size() > 0) profile_execution(outs.peek(0), device);
}

// The part of the generator's stream that a call draws from; none when it does not.
void reserve_random(const Frame& frame, const trace::Program& program, uint64_t (&state)[2]);

}  // namespace torch_tpu::dispatch
