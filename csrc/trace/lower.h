// From nodes to a StableHLO module. Parameters: the inputs in order, then one array per scalar
// carrier in use, then the generator state. Results: one per node result that is defined (a new
// tensor, or the new base value of a written cell), then the counts in one array if there are any,
// then one flag per index check.
#pragma once

#include <string>
#include <vector>

#include "csrc/ops/source.h"
#include "csrc/trace/node.h"

namespace torch_tpu::trace {

struct Lowered {
  std::string text;                      // the module
  std::vector<stablehlo::Type> outputs;  // types of the results, counts and flags excluded
  int num_counts = 0;
  std::vector<ops::ValueCheck> checks;
};

// Fills in result sizes when node.shapes_from_lowering.
Lowered lower(Node& node);

}  // namespace torch_tpu::trace
