// What programs over several devices of one client share: their code, compiled or from disk, and
// their start.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// Gives the program its key, fingerprint and executable: one partition of `text` per device, by
// global ids. `keep`: on disk as well, and looked for there. Throws pjrt::Error when the compiler
// does not take the text.
void load_sharded(trace::Program& program, const std::string& text,
                  const std::vector<int64_t>& devices, bool keep);

// args[d] of the d-th device that this process has; gives the results of each, which the caller
// owns. `keep` as in pjrt::execute_sharded. Thread-safe.
std::vector<std::vector<PJRT_Buffer*>> start_sharded(
    trace::Program& program, const std::vector<std::vector<PJRT_Buffer*>>& args,
    std::span<const int64_t> keep);

}  // namespace torch_tpu::dispatch
