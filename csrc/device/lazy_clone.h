// torch._lazy_clone: the clone's storage has the address of the original until one of them is
// written, and PyTorch sees both as copy-on-write. Values are never changed in place here, so only
// the marks are to be kept: each such storage has a context of PyTorch's kind around its cell. As
// on the CPU, a thread that makes the first clone or the first write of a storage shares it with
// none.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/device/cell.h"

namespace torch_tpu::device {

at::Tensor lazy_clone(const at::Tensor& self);

// Who writes the cell calls it first: its storage is an ordinary one from then on. It keeps its
// address if no other storage has the same.
void materialize(Cell& cell);

}  // namespace torch_tpu::device
