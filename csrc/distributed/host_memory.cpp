#include "csrc/distributed/host_memory.h"

#include <atomic>
#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>

#include "csrc/device/checks.h"
#include "csrc/device/tensor.h"
#include "csrc/distributed/staging.h"
#include "csrc/ops/call.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::distributed {
namespace {

// Below this, new memory and a copy cost less than asking whether the old may be written.
constexpr int64_t kWorthTaking = 64 << 10;

std::atomic<bool> always_copy{false};

bool host_addressable() {
  return pjrt::Runtime::get().host_addressable() && !always_copy.load(std::memory_order_relaxed);
}

bool covers_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_contiguous() &&
         tensor.storage().nbytes() == tensor.nbytes();
}

at::Tensor new_host(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::Tensor(at::detail::empty_cpu(sizes, dtype));
}

at::Tensor over(void* data, c10::IntArrayRef sizes, c10::ScalarType dtype,
                std::function<void(void*)> owner) {
  return at::from_blob(data, sizes, std::move(owner), at::TensorOptions().dtype(dtype));
}

}  // namespace

void set_always_copy(bool always) noexcept { always_copy.store(always); }

at::Tensor readable(const at::Tensor& tensor) {
  const trace::ValuePtr value = device::cell_of(*tensor.unsafeGetTensorImpl())->load();
  const bool plain = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  if (plain && !value) return tensor;
  if (plain && value->contiguous() && value->dtype() == ops::to_dtype(tensor.scalar_type()) &&
      (host_addressable() || (tensor.storage_offset() == 0 && value->dims() == tensor.sizes()))) {
    return tensor;
  }
  at::Tensor copy = device::make_tensor(tensor.sizes(), trace::contiguous_strides(tensor.sizes()),
                                        tensor.scalar_type(), tensor.device().index());
  copy.copy_(tensor);
  return copy;
}

at::Tensor plain_on_device(const at::Tensor& tensor) {
  const trace::ValuePtr value = device::cell_of(*tensor.unsafeGetTensorImpl())->load();
  if (value && value->contiguous() && value->dims() == tensor.sizes() && tensor.is_contiguous() &&
      tensor.storage_offset() == 0 && !tensor.is_conj() && !tensor.is_neg() &&
      value->dtype() == ops::to_dtype(tensor.scalar_type())) {
    return tensor;
  }
  at::Tensor copy = device::make_tensor(tensor.sizes(), trace::contiguous_strides(tensor.sizes()),
                                        tensor.scalar_type(), tensor.device().index());
  if (value) {
    copy.copy_(tensor);
  } else {
    copy.zero_();
  }
  return copy;
}

Operand::Operand(const at::Tensor& tensor)
    : value_(device::cell_of(*tensor.unsafeGetTensorImpl())->load()),
      sizes_(tensor.sizes().begin(), tensor.sizes().end()),
      dtype_(tensor.scalar_type()),
      offset_(tensor.storage_offset()),
      numel_(tensor.numel()),
      item_(static_cast<int64_t>(tensor.itemsize())) {
  if (numel_ == 0) value_.reset();
}

bool Operand::ready() const {
  if (!value_) return true;
  if (!host_addressable() || value_->awaited() != nullptr) return false;
  if (value_->promise()) return true;  // delivered as host memory that has been written
  return value_->obtain().is_ready() && !value_->guards();
}

bool Operand::launched() const {
  if (!value_) return true;
  if (value_->awaited() != nullptr) return false;
  value_->obtain();  // throws what its launch failed with
  device::raise_violations(value_->guards());
  return true;
}

bool Operand::await_launch(std::chrono::milliseconds promise_timeout) const {
  if (!value_) return true;
  if (const trace::PromisePtr& promise = value_->promise()) {
    if (!promise->wait_for(promise_timeout)) return false;
  }
  value_->obtain();
  device::raise_violations(value_->guards());
  return true;
}

bool Operand::await(std::chrono::milliseconds promise_timeout) const {
  if (!value_) return true;
  if (const trace::PromisePtr& promise = value_->promise()) {
    if (!promise->wait_for(promise_timeout)) return false;
  }
  value_->obtain().await();
  device::raise_violations(value_->guards());  // other ranks would not hear of it
  return true;
}

at::Tensor Operand::host() const {
  if (!value_) return new_host(sizes_, dtype_).zero_();
  if (host_addressable()) {
    char* data = static_cast<char*>(value_->obtain().unsafe_pointer());
    return over(data + offset_ * item_, sizes_, dtype_, [value = value_](void*) {});
  }
  at::Tensor host = new_host(sizes_, dtype_);
  value_->obtain().copy_to_host(host.mutable_data_ptr(), host.nbytes()).await();
  return host;
}

bool Operand::worth_taking() const {
  return value_ && nbytes() >= kWorthTaking && host_addressable() && offset_ == 0 &&
         value_->bytes() == nbytes() && value_->held_only_by(1) &&
         trace::Ledger::of(value_->device()).programs_idle();
}

Memory Operand::into_memory() {
  if (worth_taking()) return Memory(std::move(value_), sizes_, dtype_);
  Memory memory(sizes_, dtype_);
  if (!value_) {
    memory.host().zero_();
  } else if (host_addressable()) {
    const char* data = static_cast<const char*>(value_->obtain().unsafe_pointer());
    std::memcpy(memory.host().mutable_data_ptr(), data + offset_ * item_,
                static_cast<size_t>(nbytes()));
  } else {
    value_->obtain().copy_to_host(memory.host().mutable_data_ptr(), memory.host().nbytes()).await();
  }
  value_.reset();
  return memory;
}

Memory::Memory(c10::IntArrayRef sizes, c10::ScalarType dtype) : host_(new_host(sizes, dtype)) {}

Memory::Memory(trace::ValuePtr value, c10::IntArrayRef sizes, c10::ScalarType dtype)
    : taken_(std::make_shared<pjrt::Buffer>(pjrt::Runtime::get().api(), value->take())) {
  host_ = over(taken_->unsafe_pointer(), sizes, dtype, [buffer = taken_](void*) {});
}

PJRT_Buffer* Memory::into_buffer(int device) {
  if (taken_) {
    // Whoever still holds the host tensor may not use it any more: the memory is the value's now.
    PJRT_Buffer* buffer = taken_->release();
    taken_.reset();
    host_.reset();
    return buffer;
  }
  at::Tensor host = std::move(host_);
  if (!host_addressable() || host.numel() == 0) return device::upload(host, device)->take();
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  return runtime.client()
      .view_of_device_memory(
          host.mutable_data_ptr(), device::buffer_type(ops::to_dtype(host.scalar_type())),
          {host.sizes().data(), host.sizes().size()}, runtime.device(device), [host] {})
      .release();
}

Destination::Destination(const at::Tensor& tensor, const trace::PromisePtr& promise, bool keep)
    : sizes_(tensor.sizes().begin(), tensor.sizes().end()),
      dtype_(tensor.scalar_type()),
      device_(tensor.device().index()) {
  const trace::Shape strides = trace::contiguous_strides(tensor.sizes());
  value_ = c10::make_intrusive<trace::DeviceValue>(promise, ops::to_dtype(dtype_), sizes_, strides,
                                                   device_);
  device::Cell* cell = device::cell_of(*tensor.unsafeGetTensorImpl());
  if (covers_storage(tensor) && !tensor.is_conj() && !tensor.is_neg()) {
    old_ = cell->exchange(value_);
    if (keep) old_.reset();
  } else {
    copy_ = {tensor, device::make_tensor(tensor.sizes(), strides, dtype_, device_, value_)};
  }
}

void Destination::use_new_memory() {
  trace::ValuePtr old = std::move(old_);
  const int64_t bytes = value_->bytes();
  // Only where nothing that runs can still be reading it; waiting for that is not worth it.
  if (old && old->held_only_by(1) && host_addressable() && bytes >= kWorthTaking &&
      old->bytes() == bytes && old->awaited() == nullptr && !old->pending() &&
      trace::Ledger::of(device_).programs_idle()) {
    memory_ = Memory(std::move(old), sizes_, dtype_);
    return;
  }
  memory_ = Memory(sizes_, dtype_);
}

void Destination::use_buffer(PJRT_Buffer* buffer) {
  old_.reset();
  buffer_ = pjrt::Buffer(pjrt::Runtime::get().api(), buffer);
}

void Destination::deliver() {
  value_->deliver(buffer_ ? buffer_.release() : memory_.into_buffer(device_));
  value_.reset();
}

at::Tensor as_bytes(const at::Tensor& host) {
  const auto bytes = static_cast<int64_t>(host.nbytes());
  return at::from_blob(
      host.data_ptr(), {bytes}, [host](void*) {}, at::TensorOptions().dtype(c10::kByte));
}

}  // namespace torch_tpu::distributed
