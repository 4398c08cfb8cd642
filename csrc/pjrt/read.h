// A whole array to the host, row-major, by the shortest way the platform has.
#pragma once

#include <cstddef>

#include "csrc/pjrt/buffer.h"

namespace torch_tpu::pjrt {

// Waits for the buffer. XLA:CPU's memory is read where it is; elsewhere PJRT transfers it. (A copy
// by CUDA's own driver from this thread was tried for small reads and was no faster.)
void read_dense(const Buffer& buffer, void* dst, size_t bytes);

}  // namespace torch_tpu::pjrt
