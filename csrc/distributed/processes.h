// Processes on this machine: which are, and what has become of them.
#pragma once

#include <cstdint>
#include <string>

namespace torch_tpu::distributed {

// Two processes that say the same see each other's process ids.
const std::string& machine();

// Of a process on this machine: gone (or a corpse its parent has not buried yet), or stopped?
enum class Process { kRuns, kGone, kStopped };
Process state_of(int64_t pid);

}  // namespace torch_tpu::distributed
