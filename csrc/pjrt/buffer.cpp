// Buffer: queries and transfers to the host. Uploads are in client.cpp.
#include "csrc/pjrt/buffer.h"

#include <string>
#include <vector>

#include "csrc/pjrt/call.h"

namespace torch_tpu::pjrt {
namespace {

size_t dense_bytes(const std::vector<int64_t>& dims, PJRT_Buffer_Type type) {
  // Sub-byte elements take a byte each on the host.
  size_t bytes = static_cast<size_t>((element_bits(type) + 7) / 8);
  for (const int64_t dim : dims) bytes *= static_cast<size_t>(dim);
  return bytes;
}

Event to_host(const PJRT_Api* api, PJRT_Buffer* buffer, const std::vector<int64_t>& order,
              void* dst, size_t bytes) {
  auto layout = make_args<PJRT_Buffer_MemoryLayout>();
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled = make_args<PJRT_Buffer_MemoryLayout_Tiled>();
  layout.tiled.minor_to_major = order.data();
  layout.tiled.minor_to_major_size = order.size();
  auto args = make_args<PJRT_Buffer_ToHostBuffer_Args>();
  args.src = buffer;
  args.host_layout = &layout;
  args.dst = dst;
  args.dst_size = bytes;
  TORCH_TPU_PJRT_CALL(api, PJRT_Buffer_ToHostBuffer, args);
  return Event(api, args.event);
}

}  // namespace

void destroy_buffer(const PJRT_Api* api, PJRT_Buffer* buffer) noexcept {
  if (buffer == nullptr) return;
  auto args = make_args<PJRT_Buffer_Destroy_Args>();
  args.buffer = buffer;
  TORCH_TPU_PJRT_CALL_NOEXCEPT(api, PJRT_Buffer_Destroy, args);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    api_ = other.api_;
    buffer_ = std::exchange(other.buffer_, nullptr);
  }
  return *this;
}

void Buffer::reset() noexcept { destroy_buffer(api_, std::exchange(buffer_, nullptr)); }

std::vector<int64_t> Buffer::dims() const {
  auto args = make_args<PJRT_Buffer_Dimensions_Args>();
  args.buffer = buffer_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Buffer_Dimensions, args);
  return std::vector<int64_t>(args.dims, args.dims + args.num_dims);
}

PJRT_Buffer_Type Buffer::element_type() const {
  auto args = make_args<PJRT_Buffer_ElementType_Args>();
  args.buffer = buffer_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Buffer_ElementType, args);
  return args.type;
}

size_t Buffer::on_device_size() const {
  auto args = make_args<PJRT_Buffer_OnDeviceSizeInBytes_Args>();
  args.buffer = buffer_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Buffer_OnDeviceSizeInBytes, args);
  return args.on_device_size_in_bytes;
}

PJRT_Device* Buffer::device() const {
  auto args = make_args<PJRT_Buffer_Device_Args>();
  args.buffer = buffer_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Buffer_Device, args);
  return args.device;
}

std::vector<int64_t> Buffer::minor_to_major() const {
  auto args = make_args<PJRT_Buffer_GetMemoryLayout_Args>();
  args.buffer = buffer_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Buffer_GetMemoryLayout, args);
  if (args.layout.type != PJRT_Buffer_MemoryLayout_Type_Tiled) {
    throw Error(PJRT_Error_Code_UNIMPLEMENTED, "PJRT_Buffer_GetMemoryLayout",
                "expected a tiled layout, got strides.");
  }
  const auto& tiled = args.layout.tiled;
  return std::vector<int64_t>(tiled.minor_to_major,
                              tiled.minor_to_major + tiled.minor_to_major_size);
}

void Buffer::delete_memory() {
  auto args = make_args<PJRT_Buffer_Delete_Args>();
  args.buffer = buffer_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Buffer_Delete, args);
}

bool Buffer::is_deleted() const {
  auto args = make_args<PJRT_Buffer_IsDeleted_Args>();
  args.buffer = buffer_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Buffer_IsDeleted, args);
  return args.is_deleted;
}

bool Buffer::is_ready() const { return ready_event().is_ready(); }

Event Buffer::ready_event() const {
  auto args = make_args<PJRT_Buffer_ReadyEvent_Args>();
  args.buffer = buffer_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Buffer_ReadyEvent, args);
  return Event(api_, args.event);
}

void Buffer::await() const { ready_event().await(); }

Event Buffer::copy_to_host(void* dst, size_t bytes, const HostLayout& layout) const {
  const std::vector<int64_t> shape = dims();
  const PJRT_Buffer_Type type = element_type();
  const std::vector<int64_t> order = minor_to_major_of(layout, shape, type);
  const size_t needed = dense_bytes(shape, type);
  if (bytes < needed || (dst == nullptr && needed > 0)) {
    throw Error(PJRT_Error_Code_INVALID_ARGUMENT, "PJRT_Buffer_ToHostBuffer",
                "expected a destination of " + std::to_string(needed) + " bytes, got " +
                    (dst == nullptr ? "null" : std::to_string(bytes)) + ".");
  }
  if (needed == 0) return Event();  // a null destination would ask for the size instead

  // XLA:CPU ignores the order it is asked for and copies the bytes as they are.
  if (is_on_cpu()) {
    const std::vector<int64_t> own = minor_to_major();
    if (order != own) {
      const size_t element_bytes = dense_bytes({}, type);
      std::vector<char> copy(needed);
      to_host(api_, buffer_, own, copy.data(), needed).await();
      reorder(copy.data(), own, dst, order, shape, element_bytes);
      return Event();
    }
  }
  return to_host(api_, buffer_, order, dst, bytes);
}

size_t Buffer::host_size() const { return dense_bytes(dims(), element_type()); }

void* Buffer::unsafe_pointer() const {
  auto args = make_args<PJRT_Buffer_UnsafePointer_Args>();
  args.buffer = buffer_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Buffer_UnsafePointer, args);
  return reinterpret_cast<void*>(args.buffer_pointer);
}

bool Buffer::is_on_cpu() const {
  auto args = make_args<PJRT_Buffer_IsOnCpu_Args>();
  args.buffer = buffer_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Buffer_IsOnCpu, args);
  return args.is_on_cpu;
}

Buffer Buffer::copy_to_device(PJRT_Device* device) const {
  auto args = make_args<PJRT_Buffer_CopyToDevice_Args>();
  args.buffer = buffer_;
  args.dst_device = device;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Buffer_CopyToDevice, args);
  return Buffer(api_, args.dst_buffer);
}

}  // namespace torch_tpu::pjrt
