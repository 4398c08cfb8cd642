// From a call to a node of the trace, and from a lowered node to a program's outputs.
#pragma once

#include <vector>

#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/program/infer.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// With `constants` runtime scalars become constants and nothing is donated: for nodes of a
// recording.
trace::Node build_node(const Frame& frame, const Inferred& inferred, bool constants = false);

// `types`: of the node's defined results, after lowering.
std::vector<trace::Program::Output> describe_outputs(const trace::Node& node,
                                                     const std::vector<stablehlo::Type>& types);

// How many random numbers a call may draw: the generator advances by this, so that no two calls
// share a part of the stream.
uint64_t count_draws(const trace::Node& node);

}  // namespace torch_tpu::dispatch
