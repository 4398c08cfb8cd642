// A collective compiled for the devices of a group, one partition per rank, and run on those of
// them that this process has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/dispatch/sharded/sharded_code.h"
#include "csrc/distributed/xla_module.h"
#include "csrc/trace/value.h"

namespace torch_tpu::distributed {

class XlaProgram {
 public:
  // Compiles, or loads from disk, at the first use. Null when the compiler does not take it; so it
  // is on all ranks, which have the same compiler. `devices`: global ids by rank. Thread-safe.
  static std::shared_ptr<XlaProgram> get(const XlaCollective& what,
                                         const std::vector<int64_t>& devices);

  const XlaCollective& what() const noexcept { return what_; }

  // args[d] of the d-th rank that is here; gives the buffers of each, which the caller owns. The
  // values may be given away: only where `donate`.
  std::vector<std::vector<pjrt::Buffer>> run(const std::vector<std::vector<trace::ValuePtr>>& args,
                                             bool donate);

 private:
  XlaProgram(const XlaCollective& what, const std::vector<int64_t>& devices);

  const XlaCollective what_;
  dispatch::ShardedCode code_;
  int64_t new_bytes_ = 0;
};

// As if the compiler took nothing. For tests of that path.
void set_refuse_programs(bool refuse) noexcept;

}  // namespace torch_tpu::distributed
