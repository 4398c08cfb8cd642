// One op of a bounded program: what counts of all it reads and gives, by the forms of its sizes.
// Views whose strides do not vary, and parts of dimensions, are read at places known at run time;
// all others as the builder follows them, and then compared. Where a view splits a dimension that
// lies densely, or counts along merged ones, elements move first.
#pragma once

#include <array>
#include <memory>

#include "csrc/stablehlo/builder.h"
#include "csrc/trace/bounded.h"
#include "csrc/trace/lower.h"
#include "csrc/trace/scalar_reader.h"

namespace torch_tpu::trace {

// The sizes that the program runs with, and what is computed of them.
class Symbols {
 public:
  Symbols(stablehlo::Builder& b, ScalarReader& scalars, const Bounds& bounds);
  stablehlo::Size size_of(const Form& form) const;

 private:
  std::array<stablehlo::Size, Form::kTerms> powers_;
};

// `node` has the sizes of the bound. All arguments must outlive the result.
std::unique_ptr<NodeSizes> sized_node(stablehlo::Builder& b, const Node& node, NodeForms forms,
                                      const Bounds& bounds, const Symbols& symbols);

}  // namespace torch_tpu::trace
