#include "csrc/dispatch/sharded/spmd.h"

#include "csrc/device/checks.h"
#include "csrc/device/generator.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/fuse/pending.h"
#include "csrc/dispatch/run/scalar_pool.h"
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

std::vector<int64_t> global_ids(const std::vector<int>& devices) {
  std::vector<int64_t> ids;
  const auto& here = pjrt::Runtime::get().client().addressable_devices();
  for (const int device : devices) ids.push_back(here.at(static_cast<size_t>(device)).id());
  return ids;
}

device::Cell* cell_of_part(const at::Tensor& part) {
  return device::cell_of(*part.unsafeGetTensorImpl());
}

}  // namespace

ShardedProgram::ShardedProgram(ShardedModule module)
    : module_(std::move(module)),
      code_(module_.name, module_.text, global_ids(module_.devices),
            module_.outputs.size() + module_.checks.size(), /*keep=*/true) {}

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
  bool writes = false;
  device::Leases leases;
  for (const ShardedModule::Output& output : module_.outputs) {
    if (output.write < 0) continue;
    writes = true;
    for (const at::Tensor& part : args.at(static_cast<size_t>(output.write))) {
      leases.add(cell_of_part(part));
    }
  }
  leases.begin();
  trace::GuardUnion guards;
  std::vector<std::vector<trace::ValuePtr>> values(nargs);
  std::vector<std::vector<PJRT_Buffer*>> raw(ndevices);
  for (size_t i = 0; i < nargs; ++i) {
    const Parts& parts = args[i];
    TORCH_CHECK(parts.empty() || parts.size() == ndevices, "[spmd] argument ", i, " has ",
                parts.size(), " parts, not ", ndevices);
    for (size_t d = 0; d < ndevices; ++d) {
      const int device = module_.devices[d];
      values[i].push_back(parts.empty() ? upload_once(DType::kU64, rng, 2, device)
                                        : plain_value(parts[d], device));
      raw[d].push_back(values[i][d]->obtain_raw());
      if (!values[i][d]->guards()) continue;
      if (writes) device::raise_violations(values[i][d]->guards());
      guards.add(values[i][d]->guards());
    }
  }
  for (size_t d = 0; d < ndevices; ++d) {
    trace::Ledger::of(module_.devices[d]).check_room(code_.code().temp_bytes());
  }
  // A program takes the memory on all devices or on none.
  std::vector<int64_t> keep;
  for (const ShardedModule::Output& output : module_.outputs) {
    if (output.write < 0) continue;
    const auto at = static_cast<size_t>(output.write);
    bool taken = true;
    for (size_t d = 0; d < ndevices && taken; ++d) {
      taken = leases.of(cell_of_part(args[at][d])).take(values[at][d], /*references=*/1);
    }
    if (!taken) keep.push_back(output.write);
  }
  std::vector<Outputs> outs = code_.start(raw, keep);
  const trace::GuardsPtr inherited = guards.take();
  std::vector<trace::FlagsPtr> flags;  // one of all devices, or one each where they differ
  for (size_t d = 0; d < ndevices && !module_.checks.empty(); ++d) {
    if (d > 0 && !module_.checks_differ) break;
    trace::Flags::Places places;
    for (const ops::ValueCheck& check : module_.checks) {
      places.push_back({&check, nullptr, {}, trace::this_thread()});
    }
    auto self = c10::intrusive_ptr<ShardedProgram>::reclaim_copy(this);
    flags.push_back(device::make_flags(outs[d].take_from(module_.outputs.size()), std::move(places),
                                       std::move(self)));
  }
  const auto guard = [&](trace::DeviceValue& value, bool written) {
    trace::GuardUnion all;
    all.add(inherited);
    for (const trace::FlagsPtr& each : flags) {
      for (uint32_t i = 0; i < each->size(); ++i) all.add(each, i, !written);
    }
    if (!all.empty()) value.guard(all.take());
  };
  const PJRT_Api* api = pjrt::Runtime::get().api();
  std::vector<Parts> results;
  for (size_t j = 0; j < module_.outputs.size(); ++j) {
    const ShardedModule::Output& output = module_.outputs[j];
    Parts made;
    for (size_t d = 0; d < ndevices; ++d) {
      pjrt::Buffer buffer(api, outs[d].take(j));
      const std::vector<int64_t> dims = buffer.dims();
      const trace::Shape sizes = trace::to_shape(dims);
      const trace::Shape strides = trace::contiguous_strides(sizes);
      const int device = module_.devices[d];
      if (output.write >= 0) {
        const auto at = static_cast<size_t>(output.write);
        values[at][d].reset();
        leases.of(cell_of_part(args[at][d])).forget();
      }
      auto value = c10::make_intrusive<trace::DeviceValue>(
          buffer.release(), ops::to_dtype(output.dtype), sizes, strides, device);
      guard(*value, output.write >= 0);
      if (output.write >= 0) {
        leases.of(cell_of_part(args[static_cast<size_t>(output.write)][d])).put(std::move(value));
      } else {
        made.push_back(device::make_tensor(sizes, strides, output.dtype, device, std::move(value)));
      }
    }
    if (output.write < 0) results.push_back(std::move(made));
  }
  leases.end();
  for (const trace::FlagsPtr& each : flags) device::raise_known(*each);
  return results;
}

}  // namespace torch_tpu::dispatch
