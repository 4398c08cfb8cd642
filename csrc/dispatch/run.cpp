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
#include "csrc/dispatch/fallback.h"
#include "csrc/dispatch/frame.h"
#include "csrc/dispatch/masks.h"
#include "csrc/dispatch/mode.h"
#include "csrc/dispatch/scalar_pool.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::dispatch {
namespace {

struct Launch {
  c10::SmallVector<PJRT_Buffer*, 12> args;
  c10::SmallVector<PJRT_Buffer*, 8> outs;
  c10::SmallVector<trace::ValuePtr, 3> extra;  // scalar packs and generator state, kept alive
};

// How many random numbers a call may draw: the generator advances by this, so that no two calls
// share a part of the stream.
uint64_t draws(const trace::Program& program, const Frame& frame) {
  int64_t elements = 4;
  for (const auto& output : program.outputs) elements += trace::numel(output.base_sizes);
  for (const TensorRef& ref : frame.tensors) {
    if (ref.impl != nullptr) elements += ref.impl->numel();
  }
  return static_cast<uint64_t>((elements + 3) / 4 * 4);
}

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
  if (frame.op.entry->random) {
    std::optional<at::Generator> given;
    if (frame.op.generator_arg >= 0 && frame.args[frame.op.generator_arg].isGenerator()) {
      given = frame.args[frame.op.generator_arg].toGenerator();
    }
    auto& generator = device::generator_for(given, frame.device);
    const auto [seed, offset] = generator.reserve(draws(program, frame));
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
  const Op& op = frame.op;
  size_t next = 0;
  c10::SmallVector<at::Tensor, 4> fresh;
  Counts counts;
  if (program.num_counts > 0) {
    const size_t at = launch.outs.size() - program.checks.size() - 1;
    counts = read_counts(launch.outs[at], program.num_counts, frame.device);
  }
  for (const auto& output : program.outputs) {
    if (!output.defined) {
      if (output.write < 0) fresh.emplace_back();
      continue;
    }
    TensorRef* target =
        output.write >= 0 ? &frame.tensors[static_cast<size_t>(output.write)] : nullptr;
    if (target != nullptr && target->donated) {  // its memory is the result's: count it once
      target->value.reset();
      target->cell->store({});
    }
    auto value = c10::make_intrusive<trace::DeviceValue>(launch.outs[next++], output.value_dtype,
                                                         output.base_sizes, output.base_strides,
                                                         frame.device);
    if (target != nullptr) {
      target->value.reset();
      target->cell->store(std::move(value));
    } else if (output.extent) {
      const int64_t count = counts[static_cast<size_t>(output.extent->count)];
      fresh.push_back(counted_tensor(*output.extent, count, output.dtype, std::move(value)));
    } else {
      fresh.push_back(device::make_tensor(output.sizes, output.strides, output.dtype, frame.device,
                                          std::move(value)));
    }
  }
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

  const size_t num_args = op.args.size();
  if (op.returns.size() == 1 && !op.return_is_list[0]) {  // nearly every op
    c10::IValue result =
        op.returns[0] >= 0 ? frame.args[op.returns[0]] : c10::IValue(std::move(fresh[0]));
    stack->erase(stack->end() - static_cast<std::ptrdiff_t>(num_args), stack->end());
    stack->push_back(std::move(result));
    return;
  }
  c10::SmallVector<c10::IValue, 4> results;
  size_t singles = 0;  // new tensors that are not part of a list
  for (size_t i = 0; i < op.returns.size(); ++i) {
    if (op.returns[i] < 0 && !op.return_is_list[i]) ++singles;
  }
  const size_t in_list = fresh.size() - singles;
  size_t taken = 0;
  for (size_t i = 0; i < op.returns.size(); ++i) {
    if (op.returns[i] >= 0) {
      results.push_back(frame.args[op.returns[i]]);
    } else if (op.return_is_list[i]) {
      c10::List<at::Tensor> list;
      for (size_t k = 0; k < in_list; ++k) list.push_back(std::move(fresh[taken++]));
      results.emplace_back(std::move(list));
    } else if (!op.return_is_tensor[i]) {
      ++taken;  // the lowering gave an undefined value for it
      results.push_back(program.numbers[i]);
    } else {
      results.emplace_back(std::move(fresh[taken++]));
    }
  }
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(num_args), stack->end());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

void apply_resizes(const trace::Program& program, Frame& frame) {
  for (const auto& resize : program.resizes) {
    TensorRef& ref = frame.tensors[static_cast<size_t>(resize.tensor)];
    const at::Tensor tensor(
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(ref.impl));
    tensor.resize_(resize.sizes);
    if (tensor.strides() != trace::ShapeRef(resize.strides)) {
      ref.impl->set_sizes_and_strides(resize.sizes, resize.strides);
    }
  }
}

}  // namespace

void run_op(const Op& op, c10::Stack* stack) {
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
    if (!program) {
      try {
        program = cache.insert(frame.key, hash, build_program(frame));
      } catch (const NotLowered& error) {
        run_on_cpu(op.handle, stack, error.what());
        return;
      }
    }
    if (!program->resizes.empty()) {
      apply_resizes(*program, frame);
      continue;  // with the new sizes
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
