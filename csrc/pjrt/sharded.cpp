#include "csrc/pjrt/sharded.h"

#include "csrc/pjrt/call.h"
#include "csrc/pjrt/option_overrides.h"

namespace torch_tpu::pjrt {

LoadedExecutable compile_sharded(const Client& client, std::string_view program,
                                 const std::vector<int64_t>& device_ids) {
  CompileOptions options = CompileOptions::spmd(device_ids);
  options.use_spmd_partitioning = true;
  options.use_shardy_partitioner = true;
  // executable_build_options (3) once more, with allow_spmd_sharding_propagation_to_output (12):
  // occurrences of one message are merged.
  const std::string bytes = options.serialize() + std::string("\x1a\x02\x60\x01", 4) +
                            serialize_overrides(overrides_of(program));
  return client.compile_with(program, bytes);
}

void execute_sharded(const Client& client, const LoadedExecutable& executable,
                     std::span<PJRT_Buffer* const* const> args, size_t nargs,
                     std::span<PJRT_Buffer** const> outs, std::span<const int64_t> keep) {
  auto options = make_args<PJRT_ExecuteOptions>();
  options.non_donatable_input_indices = keep.data();
  options.num_non_donatable_input_indices = keep.size();
  auto call = make_args<PJRT_LoadedExecutable_Execute_Args>();
  call.executable = executable.raw();
  call.options = &options;
  call.num_devices = args.size();
  call.num_args = nargs;
  call.argument_lists = args.data();
  call.output_lists = outs.data();
  TORCH_TPU_PJRT_CALL(client.api(), PJRT_LoadedExecutable_Execute, call);
}

}  // namespace torch_tpu::pjrt
