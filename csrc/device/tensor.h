// Making "tpu" tensors and moving data between them and the host. What a tensor's elements are is
// (sizes, strides, offset) over the value in its cell.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/device/cell.h"

namespace torch_tpu::device {

// A new tensor of uninitialised memory (no device work) or holding `value`, whose dims and strides
// must be those given.
at::Tensor make_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       int device, trace::ValuePtr value = {});

// The same for a tensor that is only the beginning of `value`: its storage is as long as the tensor
// needs, and what the value holds behind that is never seen.
at::Tensor make_prefix_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              c10::ScalarType dtype, int device, trace::ValuePtr value);

PJRT_Buffer_Type buffer_type(stablehlo::DType dtype);

// Uploads a dense CPU tensor. Copies during the call unless `keep_alive_zero_copy`: then the device
// may read the host memory in place for as long as the value lives, and `host` is kept alive.
trace::ValuePtr upload(const at::Tensor& host, int device, bool keep_alive_zero_copy = false);

// The value's elements in host memory, laid out as its strides say, whatever they depend on. On
// XLA:CPU this is the device memory itself when that is possible; the tensor then keeps the value
// alive. Not to be written.
at::Tensor base_on_host(const trace::ValuePtr& value);

// A CPU tensor with the elements of `tensor` (its sizes and, where dense, its strides). Waits.
// Views are taken on the host from the base where that moves little; no program is compiled then.
at::Tensor download(const at::Tensor& tensor);
// The same for reading only: over device memory where that is host memory, which it keeps alive.
at::Tensor host_view(const at::Tensor& tensor);
// Copies the elements as stored to `dst`, in the order they have in memory. Waits. False where they
// do not lie together as they should; then nothing happened.
bool download_bytes(const at::Tensor& tensor, void* dst);

// A CPU tensor over the very memory of `tensor`, which must not be written through it; throws where
// device memory is not host memory or the tensor is a view with other strides than its base.
at::Tensor to_host_zero_copy(const at::Tensor& tensor);

// A tpu tensor that reads the CPU tensor's memory in place where the plugin can (XLA:CPU).
at::Tensor from_host_zero_copy(const at::Tensor& host, int device);

}  // namespace torch_tpu::device
