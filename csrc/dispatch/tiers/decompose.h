// The second tier: an op without a lowering that PyTorch's Python code can write in terms of
// others. Its decomposition runs once per key, into a recording; the program is cached like any
// other, so a hit costs what a native op costs. Functional ops only; in-place and out= forms go
// through them.
#pragma once

#include <functional>
#include <set>
#include <stdexcept>
#include <string>

#include "csrc/dispatch/call/op.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

class Frame;

// A decomposition raised: perhaps it reads values, perhaps the arguments are bad.
class DecompositionFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Python's part, set once by the bindings. `has` is asked once per op.
struct Decomposer {
  std::function<bool(const std::string& name)> has;
  std::function<void(const c10::OperatorHandle& op, c10::Stack* stack)> run;
};
void set_decomposer(Decomposer decomposer);

// The next tier for a call that has no lowering: a decomposition, or the CPU with that reason.
void run_otherwise(const Op& op, c10::Stack* stack, const std::string& reason);
void run_without_lowering(const c10::OperatorHandle& handle, c10::Stack* stack,
                          const std::string& reason);

// Within a recording: the decomposition runs into it.
void decompose_or_throw(const c10::OperatorHandle& handle, c10::Stack* stack,
                        const std::string& reason);

trace::Answer build_decomposed(const Frame& frame);

// Names of the ops that became programs this way.
std::set<std::string> decomposed_ops();
void add_decomposed_op(const std::string& name);
void reset_decomposed_ops();

}  // namespace torch_tpu::dispatch
