#include "csrc/dispatch/run/execute.h"

#include "csrc/device/checks.h"
#include "csrc/device/generator.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/dispatch/run/scalar_pool.h"

namespace torch_tpu::dispatch {

void reserve_random(const Frame& frame, const trace::Program& program, uint64_t (&state)[2]) {
  if (program.draws == 0) return;
  std::optional<at::Generator> given;
  if (frame.op.generator_arg >= 0 && frame.args[frame.op.generator_arg].isGenerator()) {
    given = frame.args[frame.op.generator_arg].toGenerator();
  }
  const auto [seed, offset] = device::generator_for(given, frame.device).reserve(program.draws);
  state[0] = seed;
  state[1] = offset;
}

void execute(trace::Runnable& program, Execution& run, int device, trace::IssueLine line,
             base::journal::Kind kind) {
  using stablehlo::DType;
  ensure_compiled(program);
  c10::SmallVector<trace::ValuePtr, 3> extra;  // kept alive during the call
  const auto add = [&](trace::ValuePtr value) {
    run.args.push_back(value->obtain_raw());
    extra.push_back(std::move(value));
  };
  const auto add_pack = [&](DType dtype, const auto& numbers) {
    if (!numbers.empty()) add(upload_pack(dtype, numbers.data(), numbers.size(), device));
  };
  add_pack(DType::kF32, run.f32);
  add_pack(DType::kF64, run.f64);
  add_pack(DType::kS64, run.s64);
  for (const trace::ValuePtr& kept : program.extra_inputs) {
    add(kept ? kept : upload_once(DType::kU64, run.rng, 2, device));
  }
  program.runs.fetch_add(1, std::memory_order_relaxed);
  const base::journal::Span span(kind, program.name, program.fingerprint);
  run_executable(program.code.executable(), run.args, run.outs, device,
                 {program.new_bytes + run.kept_bytes, program.code.temp_bytes(), run.keep},
                 [&] { return program.name + line_text(line); });
}

trace::FlagsPtr take_flags(const trace::RunnablePtr& program, Outputs& outs, size_t first,
                           const std::string* op, trace::IssueLine line, uint32_t thread) {
  if (program->checks.empty()) return {};
  std::vector<pjrt::Buffer> buffers = outs.take_from(first);
  if (pjrt::Runtime::get().host_addressable()) {
    bool fine = true;
    for (const pjrt::Buffer& flag : buffers) {
      fine = fine && flag.is_ready() &&
             *static_cast<const int64_t*>(flag.unsafe_pointer()) == ops::kNoViolation;
    }
    if (fine) return {};
  }
  trace::Flags::Places places;
  for (const ops::ValueCheck& check : program->checks) {
    places.push_back({&check, op, line, thread});
  }
  return device::make_flags(std::move(buffers), std::move(places), program);
}

std::string line_text(trace::IssueLine line) {
  const std::string text = trace::describe(line);
  return text.empty() ? text : " at " + text;
}

}  // namespace torch_tpu::dispatch
