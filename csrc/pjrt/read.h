// A whole array to the host, row-major, by the shortest way the platform has.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "csrc/pjrt/buffer.h"

namespace torch_tpu::pjrt {

// Waits for the buffer. XLA:CPU's memory is read where it is; elsewhere PJRT transfers it. (A copy
// by CUDA's own driver from this thread was tried for small reads and was no faster.)
void read_dense(const Buffer& buffer, void* dst, size_t bytes);

// The same, begun before somebody waits: where PJRT transfers, a change of threads and the way to
// the device (0.3 ms on a GPU) are over when they do. May be dropped at any time; thread-safe.
class EarlyRead {
 public:
  EarlyRead(const Buffer& buffer, size_t bytes);
  // Whether wait() would return at once.
  bool ready() const { return arrival_.is_ready(); }
  // Waits; throws what the array's program failed with.
  const char* wait() const;

 private:
  std::shared_ptr<std::vector<char>> bytes_;  // shared with the transfer
  Event arrival_;
};

}  // namespace torch_tpu::pjrt
