#include "csrc/dispatch/sharded/spmd.h"

#include "csrc/device/checks.h"
#include "csrc/device/generator.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/fuse/pending.h"
#include "csrc/dispatch/run/scalar_pool.h"
#include "csrc/dispatch/sharded/sharded_code.h"
#include "csrc/pjrt/runtime.h"

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
  std::vector<int64_t> ids;
  for (const int device : module_.devices) {
    const auto& here = pjrt::Runtime::get().client().addressable_devices();
    ids.push_back(here.at(static_cast<size_t>(device)).id());
  }
  load_sharded(program, module_.text, ids, /*keep=*/true);
  const size_t expected = module_.outputs.size() + module_.checks.size();
  TORCH_CHECK(program.executable.num_outputs() == expected, "[spmd] the module has ",
              program.executable.num_outputs(), " results, not ", expected);
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
  std::vector<std::vector<PJRT_Buffer*>> raw(ndevices);
  for (size_t d = 0; d < ndevices; ++d) {
    for (size_t i = 0; i < nargs; ++i) raw[d].push_back(values[i][d]->raw());
    trace::Ledger::of(module_.devices[d]).check_room(program_->new_bytes);
  }
  const auto outs = start_sharded(*program_, raw, keep);
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
