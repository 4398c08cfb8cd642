// What programs over several devices of one client share: their code, compiled or from disk, and
// their start.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "csrc/dispatch/run/outputs.h"
#include "csrc/trace/code.h"

namespace torch_tpu::dispatch {

// One partition of a module per device. Immutable once it is made.
class ShardedCode {
 public:
  // `devices`: by global ids. `keep`: on disk as well, and looked for there. Throws pjrt::Error
  // when the compiler does not take the text, std::runtime_error when it has another number of
  // results.
  ShardedCode(std::string name, const std::string& text, const std::vector<int64_t>& devices,
              size_t results, bool keep);

  const trace::Code& code() const noexcept { return code_; }

  // args[d] of the d-th device that this process has; gives the results of each. `keep` as in
  // pjrt::execute_sharded. Thread-safe.
  std::vector<Outputs> start(const std::vector<std::vector<PJRT_Buffer*>>& args,
                             std::span<const int64_t> keep);

 private:
  const std::string name_;
  const uint64_t fingerprint_;
  trace::Code code_;
  std::atomic<uint64_t> runs_{0};
};

}  // namespace torch_tpu::dispatch
