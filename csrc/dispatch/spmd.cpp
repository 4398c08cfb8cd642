#include "csrc/dispatch/spmd.h"

#include <chrono>

#include "csrc/base/digest.h"
#include "csrc/base/hash.h"
#include "csrc/cache/program_store.h"
#include "csrc/device/checks.h"
#include "csrc/device/generator.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/fused.h"
#include "csrc/dispatch/scalar_pool.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/pjrt/sharded.h"

namespace torch_tpu::dispatch {
namespace {

using stablehlo::DType;

trace::ValuePtr plain_value(const at::Tensor& tensor, int device) {
  TORCH_CHECK(
      tensor.device().type() == c10::DeviceType::PrivateUse1 && tensor.device().index() == device,
      "[spmd] a part on ", tensor.device(), " where one on tpu:", device, " belongs");
  trace::ValuePtr value = device::cell_of(*tensor.unsafeGetTensorImpl())->load();
  TORCH_CHECK(value && tensor.storage_offset() == 0 && tensor.is_contiguous() &&
                  value->dims() == tensor.sizes() && value->strides() == tensor.strides() &&
                  value->dtype() == ops::to_dtype(tensor.scalar_type()),
              "[spmd] a part that is a view");
  return value;
}

}  // namespace

ShardedProgram::ShardedProgram(ShardedModule module) : module_(std::move(module)) {
  program_ = c10::make_intrusive<trace::Program>();
  trace::Program& program = *program_;
  program.name = module_.name;
  program.checks = module_.checks;
  program.draws = module_.draws;
  program.outputs.resize(module_.outputs.size());
  program.fingerprint = base::hash_bytes(module_.text);
  // The text says all but the devices; the first word keeps it apart from the keys of ops.
  static constexpr uint64_t kTag = base::hash_bytes("torch_tpu sharded program");
  const base::Digest digest = base::digest(module_.text);
  for (const uint64_t word : {kTag, digest.high, digest.low, uint64_t{module_.text.size()}}) {
    program.key.add(word);
  }
  for (const int device : module_.devices) program.key.add(static_cast<uint64_t>(device));
  cache::ProgramStore& store = cache::ProgramStore::get();
  if (const trace::ProgramPtr known = store.load(program.key); known && !known->code.empty()) {
    program.code = std::move(known->code);
    program.origin = known->origin;
    program.compile_seconds = known->compile_seconds;
  }
  if (program.code.empty() || !store.load_code(program)) {
    program.origin = trace::Program::Origin::kCompiled;
    compile();
    store.store(program.key, program);
  }
  program.code = {};
  program.temp_bytes = program.executable.executable().temp_bytes();
}

void ShardedProgram::compile() {
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  std::vector<int64_t> ids;
  for (const int device : module_.devices) {
    ids.push_back(runtime.client().addressable_devices().at(static_cast<size_t>(device)).id());
  }
  const base::journal::Span span(base::journal::Kind::kCompile, program_->name,
                                 program_->fingerprint);
  const auto start = std::chrono::steady_clock::now();
  program_->executable = pjrt::compile_sharded(runtime.client(), module_.text, ids);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  program_->compile_seconds = took.count();
  const size_t expected = module_.outputs.size() + module_.checks.size();
  TORCH_CHECK(program_->executable.num_outputs() == expected, "[spmd] the module has ",
              program_->executable.num_outputs(), " results, not ", expected);
}

std::vector<ShardedProgram::Parts> ShardedProgram::run(const std::vector<Parts>& args) {
  const size_t ndevices = module_.devices.size();
  const size_t nargs = args.size();
  for (const int device : module_.devices) launch_pending(device, Cut::kCompiledCall);
  uint64_t rng[2] = {0, 0};
  if (module_.draws > 0) {
    const auto [seed, offset] =
        device::generator_for(std::nullopt, module_.devices[0]).reserve(module_.draws);
    rng[0] = seed;
    rng[1] = offset;
  }
  std::vector<std::vector<trace::ValuePtr>> values(nargs);
  for (size_t i = 0; i < nargs; ++i) {
    const Parts& parts = args[i];
    TORCH_CHECK(parts.empty() || parts.size() == ndevices, "[spmd] argument ", i, " has ",
                parts.size(), " parts, not ", ndevices);
    for (size_t d = 0; d < ndevices; ++d) {
      const int device = module_.devices[d];
      values[i].push_back(parts.empty() ? upload_once(DType::kU64, rng, 2, device)
                                        : plain_value(parts[d], device));
    }
  }
  std::vector<int64_t> keep;
  for (const ShardedModule::Output& output : module_.outputs) {
    if (output.write < 0) continue;
    for (const trace::ValuePtr& old : values[static_cast<size_t>(output.write)]) {
      // The cell's reference and ours.
      if (old->donatable() && old.use_count() <= 2) continue;
      keep.push_back(output.write);
      break;
    }
  }
  const size_t nouts = program_->executable.num_outputs();
  std::vector<std::vector<PJRT_Buffer*>> raw(ndevices);
  std::vector<std::vector<PJRT_Buffer*>> outs(ndevices, std::vector<PJRT_Buffer*>(nouts));
  std::vector<PJRT_Buffer* const*> arg_lists;
  std::vector<PJRT_Buffer**> out_lists;
  for (size_t d = 0; d < ndevices; ++d) {
    for (size_t i = 0; i < nargs; ++i) raw[d].push_back(values[i][d]->raw());
    arg_lists.push_back(raw[d].data());
    out_lists.push_back(outs[d].data());
    trace::Ledger::of(module_.devices[d]).check_room(program_->new_bytes);
  }
  program_->runs.fetch_add(1, std::memory_order_relaxed);
  {
    const base::journal::Span span(base::journal::Kind::kLaunch, program_->name,
                                   program_->fingerprint);
    pjrt::execute_sharded(pjrt::Runtime::get().client(), program_->executable, arg_lists, nargs,
                          out_lists, keep);
  }
  const PJRT_Api* api = pjrt::Runtime::get().api();
  std::vector<Parts> results;
  for (size_t j = 0; j < module_.outputs.size(); ++j) {
    const ShardedModule::Output& output = module_.outputs[j];
    Parts made;
    for (size_t d = 0; d < ndevices; ++d) {
      pjrt::Buffer buffer(api, outs[d][j]);
      const std::vector<int64_t> dims = buffer.dims();
      const trace::Shape sizes = trace::to_shape(dims);
      const trace::Shape strides = trace::contiguous_strides(sizes);
      const int device = module_.devices[d];
      auto value = c10::make_intrusive<trace::DeviceValue>(
          buffer.release(), ops::to_dtype(output.dtype), sizes, strides, device);
      if (output.write >= 0) {
        const auto at = static_cast<size_t>(output.write);
        values[at][d].reset();
        device::cell_of(*args[at][d].unsafeGetTensorImpl())->store(std::move(value));
      } else {
        made.push_back(device::make_tensor(sizes, strides, output.dtype, device, std::move(value)));
      }
    }
    if (output.write < 0) results.push_back(std::move(made));
  }
  std::vector<device::Flag> flags;
  for (size_t c = 0; c < module_.checks.size(); ++c) {
    for (size_t d = 0; d < ndevices; ++d) {
      auto flag = c10::make_intrusive<trace::DeviceValue>(outs[d][module_.outputs.size() + c],
                                                          DType::kS64, trace::ShapeRef{},
                                                          trace::ShapeRef{}, module_.devices[d]);
      if (d == 0 || module_.checks_differ) flags.push_back({std::move(flag), &program_->checks[c]});
    }
  }
  device::check_flags(flags, program_);
  return results;
}

}  // namespace torch_tpu::dispatch
