// A collective as a module of its own, one partition per device: what runs where one client has all
// devices of a group, as on TPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/stablehlo/builder.h"

namespace torch_tpu::distributed {

struct CollectiveModule {
  // "all_reduce", "all_gather", "reduce_scatter", "all_to_all" (over dimension 0), "broadcast"
  // (from the first of each group) or "permute" (each to the next of its group).
  std::string op;
  stablehlo::DType dtype = stablehlo::DType::kF32;
  std::vector<int64_t> dims;                 // of what each device has
  std::vector<std::vector<int64_t>> groups;  // of partitions, all of one size but for "permute"
  stablehlo::Reduction reduction = stablehlo::Reduction::kAdd;
  bool average = false;  // divides what was added by the size of the group
};

// Throws std::invalid_argument for an op of another name, or sizes that do not divide.
std::string collective_module(const CollectiveModule& what);

// "sum", "avg", "product", "min", "max", "band", "bor", "bxor", as c10d calls them.
void set_reduction(CollectiveModule& what, const std::string& name);

// The steps they are made of, for other modules of collectives.
namespace steps {

stablehlo::Value all_reduce(stablehlo::Builder& b, const stablehlo::Value& x, int64_t size,
                            stablehlo::Reduction kind, const stablehlo::CollectiveGroups& groups);
// Over dimension 0.
stablehlo::Value reduce_scatter(stablehlo::Builder& b, const stablehlo::Value& x, int64_t size,
                                stablehlo::Reduction kind,
                                const stablehlo::CollectiveGroups& groups);
// A bool, broadcast to `dims`: true on these partitions only. Who one is cannot be asked for in a
// partitioned program, but a one that is sent from there to there arrives nowhere else.
stablehlo::Value is_one_of(stablehlo::Builder& b, const std::vector<int64_t>& partitions,
                           const std::vector<int64_t>& dims, int64_t channel);

}  // namespace steps

}  // namespace torch_tpu::distributed
