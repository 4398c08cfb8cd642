// The last step of an out= or in-place call made by way of the functional op.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_tpu::dispatch {

// Copies the result to where the caller wants it. An out= tensor takes the result's shape, with
// PyTorch's warning where that changes it.
void copy_out(const at::Tensor& target, const at::Tensor& result, bool may_resize);

}  // namespace torch_tpu::dispatch
