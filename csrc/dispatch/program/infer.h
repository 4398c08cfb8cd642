// What PyTorch itself says about a call: its Meta kernel is run on stand-ins for the arguments.
// That gives dtypes, sizes and strides of the results, and PyTorch's own errors for bad input.
#pragma once

#include <functional>
#include <vector>

#include "csrc/dispatch/call/frame.h"

namespace torch_tpu::dispatch {

struct Inferred {
  bool known = false;  // false: no Meta kernel, shapes come from the lowering
  // Per schema return, flattened over lists; sizes as left by the Meta kernel (out= may resize).
  std::vector<at::Tensor> results;
  std::vector<c10::IValue> numbers;  // per return; None for tensors
  std::vector<int> list_sizes;       // per return; -1 when it is a single tensor
  std::vector<at::Tensor> tensors;   // the stand-ins, beside Frame::tensors; undefined for None
};

// The call's arguments with stand-ins for the tensors, which are also listed in `tensors` (beside
// Frame::tensors), and `device` in place of a device argument.
using StandIn = std::function<at::Tensor(const at::Tensor&)>;
c10::Stack stand_in_stack(const Frame& frame, const StandIn& stand_in, c10::Device device,
                          std::vector<at::Tensor>& tensors);

// Called once, before the first Meta kernel: many are Python, and the bindings may prepare for
// them.
void set_before_first_meta(void (*hook)());

// Throws what the CPU would for bad arguments.
Inferred infer(const Frame& frame);

// Runs the op on plain numbers of the same shapes on the CPU, for the error it raises there: some
// Meta kernels word theirs differently. Returns when it raises none (or would be too large to try).
void raise_cpu_error(const Frame& frame);

}  // namespace torch_tpu::dispatch
