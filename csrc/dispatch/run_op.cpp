// The boxed kernel: key, lookup, then execute on the calling thread and wrap the outputs, or record
// (fused.cpp). What happens on a cache miss is in build.cpp.
#include <ATen/core/Tensor.h>

#include "csrc/base/journal.h"
#include "csrc/cache/program_cache.h"
#include "csrc/device/checks.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/call/masks.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/debug.h"
#include "csrc/dispatch/find_program.h"
#include "csrc/dispatch/fuse/pending.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/dispatch/record/recorder.h"
#include "csrc/dispatch/run/counted.h"
#include "csrc/dispatch/run/execute.h"
#include "csrc/dispatch/run/results.h"
#include "csrc/dispatch/tiers/decompose.h"
#include "csrc/dispatch/tiers/fallback.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::dispatch {
namespace {

base::journal::Cut why_not_fused(const trace::Program& program) {
  using base::journal::Cut;
  if (program.num_counts > 0) return Cut::kDataDependentSize;
  return program.has_node ? Cut::kLinalgCheck : Cut::kUnsupportedOp;
}

void run_now(trace::Program& program, const Frame& frame, Execution& run) {
  for (const TensorRef& ref : frame.tensors) {
    if (ref.is_input) run.args.push_back(ref.value->raw());
  }
  c10::SmallVector<float, 4> f32;
  c10::SmallVector<double, 4> f64;
  c10::SmallVector<int64_t, 4> s64;
  frame.pack(f32, f64, s64);
  run.f32 = {f32.data(), f32.size()};
  run.f64 = {f64.data(), f64.size()};
  run.s64 = {s64.data(), s64.size()};
  reserve_random(frame, program, run.rng);
  execute(program, run, frame.device);
}

// Wraps the outputs and puts the results in place of the arguments on the stack.
void finish(const trace::ProgramPtr& owner, Frame& frame, Execution& run, c10::Stack* stack) {
  const trace::Program& program = *owner;
  size_t next = 0;
  Counts counts;
  if (program.num_counts > 0) {
    const size_t at = run.outs.size() - program.checks.size() - 1;
    counts = read_counts(run.outs[at], program.num_counts, frame.device);
  }
  place_results(program.outputs, program.numbers, counts, frame, stack, [&](const auto& output) {
    return c10::make_intrusive<trace::DeviceValue>(
        run.outs[next++], output.value_dtype, output.base_sizes, output.base_strides, frame.device);
  });
  if (program.num_counts > 0) ++next;
  c10::SmallVector<device::Flag, 2> flags;
  for (const ops::ValueCheck& check : program.checks) {
    flags.push_back({c10::make_intrusive<trace::DeviceValue>(
                         run.outs[next++], stablehlo::DType::kS64, trace::ShapeRef{},
                         trace::ShapeRef{}, frame.device),
                     &check});
  }
  if (!flags.empty()) device::check_flags(flags, owner);
  if (program.num_counts > 0) device::raise_pending_checks(frame.device);  // as any read does
}

}  // namespace

void run_op(const Op& op, c10::Stack* stack) {
  if (Recorder* recorder = Recorder::current()) {
    if (const auto refusal = recorder->record(op, stack)) {
      decompose_or_throw(op.handle, stack, *refusal);
    }
    return;
  }
  if (op.entry->expands_masks) expand_masks(op, stack);
  if (op.copies_out) {
    run_and_copy_out(op, stack);
    return;
  }
  const c10::IValue* args = stack->data() + (stack->size() - op.args.size());
  const base::Mode eager = mode();
  const bool fused = eager == base::Mode::kFused;
  while (true) {
    Frame frame(op, args, /*donate=*/!fused);
    const uint64_t hash = frame.key.hash();
    cache::ProgramCache& cache = cache::ProgramCache::get();
    trace::ProgramPtr program = cache.find(frame.key, hash);
    if (!program) program = load_or_build(frame, hash);
    if (!program->runnable()) {
      if (program->refusal.empty()) {
        apply_resizes(program->resizes, frame);
        continue;  // with the new sizes
      }
      run_otherwise(op, stack, program->refusal);
      return;
    }
    if (fused && program->fusible) {
      if (program->wants_node.load(std::memory_order_relaxed)) [[unlikely]]
        add_node(frame, *program);
      record_call(frame, std::move(program), stack);
      return;
    }
    if (fused) launch_pending(frame.device, why_not_fused(*program));
    Execution run;
    if (eager == base::Mode::kDebug) {
      DebugCall record(frame);
      record.guard([&] {
        run_now(*program, frame, run);
        finish(program, frame, run, stack);
      });
      record.check(*stack, op);
      return;
    }
    run_now(*program, frame, run);
    finish(program, frame, run, stack);
    return;
  }
}

}  // namespace torch_tpu::dispatch
