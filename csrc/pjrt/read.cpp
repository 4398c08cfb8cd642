// read_dense, EarlyRead: see the header.
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

EarlyRead::EarlyRead(const Buffer& buffer, size_t bytes)
    : bytes_(std::make_shared<std::vector<char>>(bytes)),
      arrival_(buffer.copy_to_host(bytes_->data(), bytes, HostLayout::row_major())) {
  try {
    arrival_.on_ready([kept = bytes_](const Error*) {});
  } catch (...) {
    // Nobody keeps the bytes then: the transfer must be over before they go.
    arrival_.await();
    throw;
  }
}

const char* EarlyRead::wait() const {
  arrival_.await();
  return bytes_->data();
}

}  // namespace torch_tpu::pjrt
