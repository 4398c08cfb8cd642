// A collective of a group as one module over the devices of its ranks: partition i is rank i. What
// the transport over XLA runs.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc/stablehlo/type.h"
#include "csrc/trace/key.h"

namespace torch_tpu::distributed {

enum class XlaKind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast };

// The same on all ranks.
struct XlaCollective {
  XlaKind kind = XlaKind::kAllReduce;
  c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::SUM;
  int64_t root = 0;
  int64_t size = 1;  // ranks
  stablehlo::DType dtype = stablehlo::DType::kF32;
  std::vector<stablehlo::Dims> inputs;   // of one rank; several are the pieces for each rank
  std::vector<stablehlo::Dims> outputs;  // the same, from each rank

  // All that the module depends on.
  trace::Key key() const;
  // Whether the output may lie where the input did.
  bool in_place() const { return kind == XlaKind::kAllReduce; }
};

// A reduction has a module; PREMUL_SUM, whose factor is known to the host, has not.
bool has_module(c10d::ReduceOp::RedOpType reduction);

const char* name_of(XlaKind kind);  // "all_reduce"

std::string xla_module(const XlaCollective& what);

}  // namespace torch_tpu::distributed
