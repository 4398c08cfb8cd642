// A call: key, lookup, then execute on the calling thread and wrap the outputs, or leave the call
// to Fused Eager (fuse/pending.h). What happens on a miss is in find_program.h.
#include <ATen/MemoryOverlap.h>
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
  return program.has_node() ? Cut::kLinalgCheck : Cut::kUnsupportedOp;
}

// The arguments' buffers, and what the results will depend on. An operand that a bad index may have
// spoiled is looked into before it goes into a tensor that is sound.
void add_arguments(const Frame& frame, Execution& run, trace::GuardUnion& guards) {
  for (const TensorRef& ref : frame.tensors) {
    if (!ref.is_input) continue;
    run.args.push_back(ref.value->obtain_raw());
    if (!ref.value->guards()) continue;
    if (frame.op.writes && !ref.written) device::raise_violations(ref.value->guards());
    guards.add(ref.value->guards());
  }
}

// From here on nobody else can get hold of the memory that the program takes.
void take_donated(Frame& frame, Execution& run) {
  int64_t input = 0;
  for (TensorRef& ref : frame.tensors) {
    if (!ref.is_input) continue;
    if (ref.donated && !frame.leases.of(ref.cell).take(ref.value, /*references=*/1)) {
      run.keep.push_back(input);
      run.kept_bytes += ref.value->bytes();
    }
    ++input;
  }
}

void run_now(trace::Program& program, Frame& frame, Execution& run, trace::GuardUnion& guards) {
  ensure_compiled(program);  // before the memory is taken: readers would wait for it
  add_arguments(frame, run, guards);
  c10::SmallVector<float, 4> f32;
  c10::SmallVector<double, 4> f64;
  c10::SmallVector<int64_t, 4> s64;
  frame.pack(f32, f64, s64);
  run.f32 = {f32.data(), f32.size()};
  run.f64 = {f64.data(), f64.size()};
  run.s64 = {s64.data(), s64.size()};
  reserve_random(frame, program, run.rng);
  if (frame.op.writes) take_donated(frame, run);
  execute(program, run, frame.device);
}

// Wraps the outputs.
void finish(const trace::ProgramPtr& owner, Frame& frame, Execution& run, trace::GuardUnion& guards,
            Results& results) {
  const trace::Program& program = *owner;
  const size_t first_flag = run.outs.size() - program.checks.size();
  const trace::FlagsPtr flags = take_flags(owner, run.outs, first_flag);
  Counts counts;
  if (program.num_counts > 0) {
    // As any read does.
    if (flags) {
      static_cast<void>(flags->value(0));
      device::raise_known(*flags);
    }
    const trace::GuardsPtr inputs = guards.take();
    device::raise_violations(inputs);
    guards.add(inputs);
    const pjrt::Buffer buffer(pjrt::Runtime::get().api(), run.outs.take(first_flag - 1));
    counts = read_counts(buffer, program.num_counts);
  }
  const trace::GuardsPtr inherited = guards.take();
  size_t next = 0;
  place_results(program.outputs, program.numbers, counts, frame, results, [&](const auto& output) {
    auto value = c10::make_intrusive<trace::DeviceValue>(run.outs.take(next++), output.value_dtype,
                                                         output.base_sizes, output.base_strides,
                                                         frame.device);
    if (inherited || flags) {
      trace::GuardUnion all;
      all.add(inherited);
      // A write with an index out of range wrote nothing there.
      for (uint32_t i = 0; flags && i < flags->size(); ++i) all.add(flags, i, output.write < 0);
      value->guard(all.take());
    }
    return value;
  });
  if (flags) device::raise_known(*flags);
}

using RefusalPtr = std::shared_ptr<const trace::Refusal>;

// Null when the call ran, or was issued. Else nothing has happened, and it has to run otherwise.
RefusalPtr run_on_device(const Op& op, const c10::IValue* args, Results& results) {
  const base::Mode eager = mode();
  const bool fused = eager == base::Mode::kFused;
  bool launched = false;
  while (true) {
    Frame frame(op, args, fused ? fused_writes() : Frame::Writes::kDonate);
    const uint64_t hash = frame.key.hash();
    cache::ProgramCache& cache = cache::ProgramCache::get();
    trace::Answer answer = cache.find(frame.key, hash);
    bool built = false;
    if (!trace::is_known(answer)) answer = load_or_build(frame, hash, built);
    auto* known = std::get_if<trace::ProgramPtr>(&answer);
    if (known == nullptr) [[unlikely]] {
      frame.leases.end();  // both write the tensors themselves
      if (const auto* resizes = std::get_if<std::shared_ptr<const trace::Resizes>>(&answer)) {
        // The Meta kernel has warned where it was asked.
        apply_resizes(**resizes, frame, /*warn=*/!built);
        continue;  // with the new sizes
      }
      return std::get<RefusalPtr>(std::move(answer));
    }
    const trace::ProgramPtr program = std::move(*known);
    if (fused && program->fusible) {
      if (program->wants_node.load(std::memory_order_relaxed)) [[unlikely]]
        add_node(frame, *program);
      if (issue_call(frame, program, results)) return nullptr;
      frame.leases.end();  // who launches may wait for somebody who needs them
      make_room(frame.device, *program);
      continue;
    }
    if (fused && !launched) {
      launched = true;
      frame.leases.end();  // who launches may wait for somebody who needs them
      launch_pending(frame.device, why_not_fused(*program));
      continue;
    }
    Execution run;
    trace::GuardUnion guards;
    if (eager == base::Mode::kDebug) {
      DebugCall debugged(frame);
      debugged.guard([&] {
        run_now(*program, frame, run, guards);
        finish(program, frame, run, guards, results);
      });
      debugged.check(frame, results);
      return nullptr;
    }
    run_now(*program, frame, run, guards);
    finish(program, frame, run, guards, results);
    return nullptr;
  }
}

// fill_ of a view that meets an element more than once: of parts that do not.
bool run_by_parts(const Op& op, c10::Stack* stack) {
  const size_t first = stack->size() - op.args.size();
  if (!op.entry->constant || !op.args[0].written) return false;
  const at::Tensor self = (*stack)[first].toTensor();
  if (at::has_internal_overlap(self) == at::MemOverlap::No) return false;
  int64_t along = -1;  // the shortest dimension, but one that repeats is better
  int64_t count = 0;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (self.size(d) == 1) continue;
    const int64_t parts = self.stride(d) == 0 ? 1 : self.size(d);
    if (along >= 0 && parts >= count) continue;
    along = d;
    count = parts;
  }
  if (along < 0) return false;
  for (int64_t i = 0; i < count; ++i) {
    c10::Stack part(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
    part[0] = self.select(along, i);
    run_op(op, &part);
  }
  stack->resize(first);
  stack->emplace_back(self);
  return true;
}

}  // namespace

void run_op(const Op& op, c10::Stack* stack) {
  if (Recorder* recorder = Recorder::current()) {
    if (const auto refusal = recorder->record(op, stack)) {
      if (!run_by_parts(op, stack)) decompose_or_throw(op.handle, stack, *refusal);
    }
    return;
  }
  if (op.entry->expands_masks) expand_masks(op, stack);
  if (op.copies_out) {
    run_and_copy_out(op, stack);
    return;
  }
  Results results;
  const c10::IValue* args = stack->data() + (stack->size() - op.args.size());
  if (const RefusalPtr refusal = run_on_device(op, args, results)) {
    if (!run_by_parts(op, stack)) run_otherwise(op, stack, refusal->why);
  } else {
    push_results(op, std::move(results), stack);
  }
}

bool run_unboxed(const Op& op, const c10::IValue* args, at::Tensor* fresh) {
  if (Recorder::current() != nullptr) return false;
  Results results;
  if (run_on_device(op, args, results)) return false;
  if (fresh != nullptr) *fresh = std::move(results.fresh[0]);
  return true;
}

}  // namespace torch_tpu::dispatch
