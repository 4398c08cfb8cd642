// Buffer: move-only owner of a device array.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "csrc/pjrt/api.h"
#include "csrc/pjrt/event.h"
#include "csrc/pjrt/host_layout.h"

namespace torch_tpu::pjrt {

// Frees a PJRT_Buffer; `buffer` may be null. For code that keeps raw pointers.
void destroy_buffer(const PJRT_Api* api, PJRT_Buffer* buffer) noexcept;

// Holds no reference to its client (16 bytes, no atomics on the hot path): a
// Buffer must be destroyed before its Client. Const methods are thread-safe.
class Buffer {
 public:
  Buffer() noexcept = default;
  // Takes ownership; `buffer` may be null.
  Buffer(const PJRT_Api* api, PJRT_Buffer* buffer) noexcept : api_(api), buffer_(buffer) {}
  Buffer(Buffer&& other) noexcept
      : api_(other.api_), buffer_(std::exchange(other.buffer_, nullptr)) {}
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { reset(); }

  explicit operator bool() const noexcept { return buffer_ != nullptr; }
  PJRT_Buffer* raw() const noexcept { return buffer_; }
  PJRT_Buffer* release() noexcept { return std::exchange(buffer_, nullptr); }
  const PJRT_Api* api() const noexcept { return api_; }
  // Frees the array; work in flight on it still completes.
  void reset() noexcept;

  std::vector<int64_t> dims() const;
  PJRT_Buffer_Type element_type() const;
  // Includes the device's padding.
  size_t on_device_size() const;
  PJRT_Device* device() const;
  // The device's own layout, where the plugin tells it (untiled part only).
  std::vector<int64_t> minor_to_major() const;

  // Drops the memory but keeps the handle; is_deleted() is then true. Also true
  // for a buffer that was donated.
  void delete_memory();
  bool is_deleted() const;

  // Ready means computed; a deleted or donated buffer reports an error instead.
  bool is_ready() const;
  Event ready_event() const;
  void await() const;

  // Copies into `dst`, which must live until the event is ready. `bytes` is the
  // size of `dst`; too small is an INVALID_ARGUMENT error. Byte strides may
  // describe any dense order of dimensions. Where the memory is host memory,
  // await() and unsafe_pointer() avoid a change of thread (0.1 against 7 us).
  Event copy_to_host(void* dst, size_t bytes, const HostLayout& layout = {}) const;
  // Bytes copy_to_host needs for a dense layout.
  size_t host_size() const;

  // The device address. On XLA:CPU this is host memory; valid while the buffer
  // lives and is not donated. Throws UNIMPLEMENTED where the plugin has none.
  void* unsafe_pointer() const;
  bool is_on_cpu() const;

  // A new array on another device of the same client. Asynchronous. Same device
  // is an error on some plugins.
  Buffer copy_to_device(PJRT_Device* device) const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Buffer* buffer_ = nullptr;
};

}  // namespace torch_tpu::pjrt
