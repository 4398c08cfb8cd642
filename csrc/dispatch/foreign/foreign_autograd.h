// The gradient of ops whose lowering comes from outside: a call leaves a node in autograd's graph,
// as PyTorch's own ops do, whose backward is an op again. No Python on the way.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "csrc/dispatch/call/op.h"

namespace torch_tpu::dispatch {

// How an op is differentiated. Lives as long as the process: nodes point to it.
struct Gradient {
  std::string node_name;
  std::vector<ArgKind> kinds;  // of the op's arguments
  bool keeps_outputs = false;
  // op(arguments..., outputs[], gradients of the outputs?[], indices[] of the wanted tensors) gives
  // their gradients. Throws when it is gone.
  std::function<c10::OperatorHandle()> op;
};

// Whether autograd has to know of a call with this argument. A tangent (forward mode) is an error.
bool requires_grad(const std::string& op, const c10::IValue& value);

// Runs the op below autograd and gives its results a history.
void run_differentiated(const Gradient& gradient, const c10::OperatorHandle& handle,
                        c10::DispatchKeySet keys, c10::Stack* stack);

}  // namespace torch_tpu::dispatch
