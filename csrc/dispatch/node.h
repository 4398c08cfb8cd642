// From a call to a node of the trace, and from a lowered node to a program's outputs.
#pragma once

#include <optional>
#include <vector>

#include "csrc/dispatch/frame.h"
#include "csrc/dispatch/infer.h"
#include "csrc/pjrt/plugin.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// While one is alive, calls of this thread are lowered for that platform's compiler instead of the
// one that is loaded: for modules that will run elsewhere.
class PlatformScope {
 public:
  explicit PlatformScope(pjrt::PlatformKind kind);
  ~PlatformScope();
  PlatformScope(const PlatformScope&) = delete;
  PlatformScope& operator=(const PlatformScope&) = delete;

 private:
  std::optional<pjrt::PlatformKind> previous_;
};

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
