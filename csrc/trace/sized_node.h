// One op of a bounded program: what counts of all it reads and gives, by the forms of its sizes.
// Views whose strides do not vary, and parts of dimensions, are read at places known at run time;
// all others as the builder follows them, and then compared.
#pragma once

#include <memory>

#include "csrc/stablehlo/builder.h"
#include "csrc/trace/bounded.h"
#include "csrc/trace/lower.h"

namespace torch_tpu::trace {

// `node` has the sizes of the bound. All arguments must outlive the result.
std::unique_ptr<NodeSizes> sized_node(stablehlo::Builder& b, const Node& node, NodeForms forms,
                                      const Bounds& bounds, const stablehlo::Size& n);

}  // namespace torch_tpu::trace
