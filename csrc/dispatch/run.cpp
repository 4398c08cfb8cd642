// The boxed kernel: key, lookup, execute on the calling thread, wrap the outputs. What happens on a
// cache miss is in build.cpp.
#include <ATen/core/Tensor.h>

#include "csrc/cache/program_cache.h"
#include "csrc/device/checks.h"
#include "csrc/device/generator.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/build.h"
#include "csrc/dispatch/counted.h"
#include "csrc/dispatch/debug.h"
#include "csrc/dispatch/decompose.h"
#include "csrc/dispatch/fallback.h"
#include "csrc/dispatch/frame.h"
#include "csrc/dispatch/masks.h"
#include "csrc/dispatch/mode.h"
#include "csrc/dispatch/persist.h"
#include "csrc/dispatch/record.h"
#include "csrc/dispatch/results.h"
#include "csrc/dispatch/scalar_pool.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::dispatch {
namespace {

struct Launch {
  c10::SmallVector<PJRT_Buffer*, 12> args;
  c10::SmallVector<PJRT_Buffer*, 8> outs;
  c10::SmallVector<trace::ValuePtr, 3> extra;  // scalar packs and generator state, kept alive
};

void add_runtime_inputs(Launch& launch, const trace::Program& program, const Frame& frame) {
  using stablehlo::DType;
  if (!frame.scalars.empty()) {
    const Packs packs = frame.pack();
    const auto add = [&](DType dtype, const void* data, size_t count) {
      if (count == 0) return;
      launch.extra.push_back(upload_pack(dtype, data, count, frame.device));
      launch.args.push_back(launch.extra.back()->raw());
    };
    add(DType::kF32, packs.f32.data(), packs.f32.size());
    add(DType::kF64, packs.f64.data(), packs.f64.size());
    add(DType::kS64, packs.s64.data(), packs.s64.size());
  }
  for (const trace::ValuePtr& kept : program.extra_inputs) {
    if (kept) {
      launch.args.push_back(kept->raw());
      continue;
    }
    std::optional<at::Generator> given;
    if (frame.op.generator_arg >= 0 && frame.args[frame.op.generator_arg].isGenerator()) {
      given = frame.args[frame.op.generator_arg].toGenerator();
    }
    auto& generator = device::generator_for(given, frame.device);
    const auto [seed, offset] = generator.reserve(program.draws);
    const uint64_t state[] = {seed, offset};
    launch.extra.push_back(upload_once(DType::kU64, state, 2, frame.device));
    launch.args.push_back(launch.extra.back()->raw());
  }
}

void execute(const trace::Program& program, const Frame& frame, Launch& launch) {
  for (const TensorRef& ref : frame.tensors) {
    if (ref.is_input) launch.args.push_back(ref.value->raw());
  }
  add_runtime_inputs(launch, program, frame);
  launch.outs.resize(program.executable.num_outputs());
  trace::Ledger& ledger = trace::Ledger::of(frame.device);
  ledger.check_room(program.new_bytes);
  try {
    program.executable.execute(launch.args.data(), launch.args.size(), launch.outs.data(),
                               pjrt::Runtime::get().device(frame.device));
  } catch (const pjrt::Error& error) {
    if (error.is_out_of_memory()) {
      ledger.throw_out_of_memory(program.new_bytes, "While running " + program.name + ".");
    }
    throw;
  }
}

// Wraps the outputs and puts the results in place of the arguments on the stack.
void finish(const trace::Program& program, Frame& frame, Launch& launch, c10::Stack* stack) {
  size_t next = 0;
  Counts counts;
  if (program.num_counts > 0) {
    const size_t at = launch.outs.size() - program.checks.size() - 1;
    counts = read_counts(launch.outs[at], program.num_counts, frame.device);
  }
  place_results(program.outputs, program.numbers, counts, frame, stack, [&](const auto& output) {
    return c10::make_intrusive<trace::DeviceValue>(launch.outs[next++], output.value_dtype,
                                                   output.base_sizes, output.base_strides,
                                                   frame.device);
  });
  if (program.num_counts > 0) ++next;
  c10::SmallVector<trace::ValuePtr, 2> flags;
  for (size_t i = 0; i < program.checks.size(); ++i) {
    flags.push_back(c10::make_intrusive<trace::DeviceValue>(
        launch.outs[next++], stablehlo::DType::kS64, trace::ShapeRef{}, trace::ShapeRef{},
        frame.device));
  }
  for (size_t i = 0; i < flags.size(); ++i) {
    device::check_flag(std::move(flags[i]), program.checks[i]);
  }
  if (program.num_counts > 0) device::raise_pending_checks(frame.device);  // as any read does
}

}  // namespace

void run_op(const Op& op, c10::Stack* stack) {
  if (Recorder* recorder = Recorder::current()) {
    recorder->record(op, stack);
    return;
  }
  if (op.entry->expands_masks) expand_masks(op, stack);
  if (op.copies_out) {
    run_and_copy_out(op, stack);
    return;
  }
  const c10::IValue* args = stack->data() + (stack->size() - op.args.size());
  while (true) {
    Frame frame(op, args);
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
    const bool debug = mode() == base::Mode::kDebug;
    Launch launch;
    if (debug) {
      DebugCall record(frame);
      record.guard([&] {
        execute(*program, frame, launch);
        finish(*program, frame, launch, stack);
      });
      record.check(*stack, op);
      return;
    }
    execute(*program, frame, launch);
    finish(*program, frame, launch, stack);
    return;
  }
}

}  // namespace torch_tpu::dispatch
