// The context of a "tpu" Storage. All views of a storage share its cell; a write puts a new value
// into it and never changes the old one. A cell without a value is uninitialised memory: empty()
// touches no device.
#pragma once

#include <atomic>

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "csrc/trace/value.h"

namespace torch_tpu::device {

class Cell {
 public:
  explicit Cell(int device) : device_(device) {}

  int device() const noexcept { return device_; }

  // Each takes a few nanoseconds under a spin lock: threads may share tensors (Hogwild).
  trace::ValuePtr load() const noexcept {
    lock();
    trace::ValuePtr value = value_;
    unlock();
    return value;
  }
  void store(trace::ValuePtr value) noexcept {
    lock();
    std::swap(value, value_);
    unlock();  // the old value is freed outside the lock
  }

 private:
  void lock() const noexcept {
    while (busy_.test_and_set(std::memory_order_acquire)) {
    }
  }
  void unlock() const noexcept { busy_.clear(std::memory_order_release); }

  trace::ValuePtr value_;
  mutable std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  int device_;
};

// The cell of a tpu storage or of the storage of a tpu tensor.
inline Cell* cell_of(const c10::StorageImpl& storage) {
  return static_cast<Cell*>(storage.data_ptr().get_context());
}
inline Cell* cell_of(const c10::TensorImpl& tensor) {
  return cell_of(*tensor.unsafe_storage().unsafeGetStorageImpl());
}

// A DataPtr that owns a new cell. Its address is a number of its own, unique per allocation and
// never mapped: PyTorch compares addresses to find aliases, but nobody may read through one.
c10::DataPtr make_cell_ptr(int device, size_t nbytes, trace::ValuePtr value = {});

// The storage behind new tensors.
c10::intrusive_ptr<c10::StorageImpl> make_storage(int device, size_t nbytes,
                                                  trace::ValuePtr value = {});

// Grows or shrinks, keeping the common prefix of the contents (as UntypedStorage.resize_ does).
void resize_storage(c10::StorageImpl& storage, size_t nbytes);

}  // namespace torch_tpu::device
