// Programs over several devices of one client: how they are compiled and run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/pjrt/client.h"

namespace torch_tpu::pjrt {

// Partitions a module with sdy.sharding annotations, one partition per device. Results without an
// annotation get the sharding that the compiler finds.
LoadedExecutable compile_sharded(const Client& client, std::string_view program,
                                 const std::vector<int64_t>& device_ids);

// args[d][i] and outs[d][j] for partition d; outs takes new buffers. `keep` names arguments that
// are not given away this time though the program would take them.
void execute_sharded(const Client& client, const LoadedExecutable& executable,
                     std::span<PJRT_Buffer* const* const> args, size_t nargs,
                     std::span<PJRT_Buffer** const> outs, std::span<const int64_t> keep);

}  // namespace torch_tpu::pjrt
