// Lowering the nodes of a piece one after another: what a program of fixed sizes and a bounded one
// have in common.
#pragma once

#include <utility>
#include <vector>

#include "csrc/trace/lower.h"
#include "csrc/trace/scalar_reader.h"

namespace torch_tpu::trace {

inline std::vector<stablehlo::Type> external_types(const FusedProgram& program) {
  std::vector<stablehlo::Type> types(program.num_externals);
  for_each_node(program, [&](size_t n, size_t refs) {
    for (const TensorArg& tensor : program.nodes[n]->node().tensors) {
      if (tensor.input < 0) continue;
      const uint32_t ref = program.words[refs + static_cast<size_t>(tensor.input)];
      if (!is_internal(ref)) types[index_of(ref)] = tensor.base;
    }
  });
  return types;
}

struct PieceOutputs {
  stablehlo::Values values;  // of all nodes
  stablehlo::Values flags;   // of all checks, [1] each
};

// Whether none of these checks is violated: bool[].
inline stablehlo::Value in_order(stablehlo::Builder& b, const stablehlo::Values& flags,
                                 const Bits& checks) {
  stablehlo::Value all;
  checks.for_each([&](size_t check) {
    const stablehlo::Value flag = b.reshape(flags[check], {});
    const stablehlo::Value fine = b.eq(flag, b.splat_int(ops::kNoViolation, flag.type()));
    all = all.defined() ? b.and_(all, fine) : fine;
  });
  return all;
}

// `prepare(node, inputs)` may change either; what it returns lives until the node is lowered.
template <class Prepare>
PieceOutputs lower_nodes(stablehlo::Builder& b, const FusedProgram& program,
                         const stablehlo::Values& externals, ScalarReader& scalars,
                         const Prepare& prepare) {
  PieceOutputs all;
  for_each_node(program, [&](size_t n, size_t refs) {
    Node node = program.nodes[n]->node();  // lowering fills in sizes
    NodeInputs inputs;
    const auto held = prepare(node, inputs);
    for (int i = 0; i < node.num_inputs; ++i) {
      const uint32_t ref = program.words[refs + static_cast<size_t>(i)];
      inputs.bases.push_back(is_internal(ref) ? all.values[index_of(ref)]
                                              : externals[index_of(ref)]);
    }
    inputs.packs = scalars.packs(node.pack_sizes);
    if (node.entry->random) inputs.rng_state = scalars.rng_state();
    NodeOutputs out = lower_into(b, node, inputs);
    size_t next = 0;  // among the outputs that are defined
    for (const Program::Output& output : program.nodes[n]->outputs) {
      if (!output.defined) continue;
      while (!out.results[next].defined()) ++next;
      stablehlo::Value value = out.results[next++];
      const Bits& held = program.dependencies.held_back[all.values.size()];
      if (!held.empty()) {
        value = b.select(in_order(b, all.flags, held), value,
                         inputs.bases[static_cast<size_t>(output.input)]);
      }
      all.values.push_back(std::move(value));
    }
    for (const ops::PendingCheck& check : out.checks) {
      all.flags.push_back(b.reshape(check.flag, {1}));
    }
  });
  return all;
}

// The module; the flags follow the results in one array.
inline std::string finish_piece(stablehlo::Builder& b, stablehlo::Values results,
                                const stablehlo::Values& flags, const std::string& name) {
  if (!flags.empty()) results.push_back(b.concatenate(flags, 0));
  return b.finish(results, name);
}

}  // namespace torch_tpu::trace
