// Results that PyTorch's Meta kernels describe otherwise than its CPU kernels give them: another
// order in memory, or a dimension too many.
#pragma once

#include <vector>

#include "csrc/dispatch/call/frame.h"

namespace torch_tpu::dispatch {

// `results`: what the Meta kernel of the call gave. Not for out= forms.
void describe_like_cpu(const Frame& frame, std::vector<at::Tensor>& results);

}  // namespace torch_tpu::dispatch
