// read_dense: see the header.
#include "csrc/pjrt/read.h"

#include <cstring>

#include "csrc/pjrt/runtime.h"

namespace torch_tpu::pjrt {

void read_dense(const Buffer& buffer, void* dst, size_t bytes) {
  if (Runtime::get().host_addressable()) {
    buffer.await();
    std::memcpy(dst, buffer.unsafe_pointer(), bytes);
    return;
  }
  buffer.copy_to_host(dst, bytes, HostLayout::row_major()).await();
}

}  // namespace torch_tpu::pjrt
