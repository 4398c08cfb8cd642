// From nodes to a StableHLO module. Parameters: the inputs in order, then one array per scalar
// carrier in use, then the generator state. Results: one per node result that is defined (a new
// tensor, or the new base value of a written cell), then the counts in one array if there are any,
// then one flag per index check.
#pragma once

#include <string>
#include <vector>

#include "csrc/ops/source.h"
#include "csrc/trace/node.h"
#include "csrc/trace/view.h"

namespace torch_tpu::trace {

struct Lowered {
  std::string text;                      // the module
  std::vector<stablehlo::Type> outputs;  // types of the results, counts and flags excluded
  int num_counts = 0;
  std::vector<ops::ValueCheck> checks;
};

// The module of one node. Fills in result sizes when node.shapes_from_lowering.
Lowered lower(Node& node);

// Says what counts where sizes of a node vary; throws stablehlo::Unproven where that is not known.
// The node's own sizes are those of the bound then.
class NodeSizes {
 public:
  virtual ~NodeSizes() = default;
  // The elements of tensor argument `tensor`, from its base.
  virtual stablehlo::Value read(size_t tensor, const stablehlo::Value& base,
                                const Place& place) = 0;
  // All that the op reads, once it is read: as the op can take it.
  virtual void arrange(stablehlo::Values& reads) = 0;
  // The base with `update` in the place of that argument.
  virtual stablehlo::Value write(size_t tensor, const stablehlo::Value& base,
                                 const stablehlo::Value& update, const Place& place) = 0;
  // The elements of one that has no memory yet, and of what was lowered for a result.
  virtual stablehlo::Value unwritten(size_t tensor, const stablehlo::Value& value) = 0;
  virtual stablehlo::Value result(size_t result, const stablehlo::Value& value) = 0;
};

// What a node reads in a module under construction.
struct NodeInputs {
  stablehlo::Values bases;     // one per input of the node
  stablehlo::Values packs;     // one per scalar carrier; undefined where none is in use
  stablehlo::Value rng_state;  // for random ops
  NodeSizes* sizes = nullptr;  // null: none of them varies
};

struct NodeOutputs {
  // Per result of the node the new tensor, or the new base value of the written cell; undefined
  // where the result is.
  stablehlo::Values results;
  stablehlo::Values counts;  // s64[1] each: see Extent
  std::vector<ops::PendingCheck> checks;
};

// Adds one node to a module. `alone`: there will be no other.
NodeOutputs lower_into(stablehlo::Builder& b, Node& node, const NodeInputs& inputs,
                       bool alone = false);

// "aten::add_.Tensor" as the name of a module.
std::string module_name(const std::string& op_name);

}  // namespace torch_tpu::trace
