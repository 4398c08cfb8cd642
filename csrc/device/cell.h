// The context of a "tpu" Storage. All views of a storage share its cell; a write puts a new value
// into it and never changes the old one. A cell without a value is uninitialised memory: empty()
// touches no device. Who writes holds a lease, one at a time, from the load of the old value to the
// store of the new one: so two threads may write two rows of one tensor, as on the CPU.
#pragma once

#include <atomic>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/COWDeleter.h>
#include <c10/util/SmallVector.h>

#include "csrc/trace/value.h"

namespace torch_tpu::device {

class Cell {
 public:
  explicit Cell(int device, trace::ValuePtr value = {})
      : value_(std::move(value)), device_(device) {}

  int device() const noexcept { return device_; }

  // The value as it was before a write under way, or after it. Waits only while the old value's
  // memory is being given to the new one.
  trace::ValuePtr load() const {
    while (true) {
      lock();
      if (!taken_) [[likely]] {
        trace::ValuePtr value = value_;
        unlock();
        return value;
      }
      unlock();
      wait_until(&Cell::has_value);
    }
  }
  // Waits for a write under way. Returns the old value.
  trace::ValuePtr exchange(trace::ValuePtr value);
  void store(trace::ValuePtr value) { exchange(std::move(value)); }

  // PyTorch's mark of a storage that is copied on write; null: it is not. See lazy_clone.h.
  const void* lazy() const noexcept { return lazy_.load(std::memory_order_relaxed); }
  void set_lazy(const void* context) noexcept { lazy_.store(context, std::memory_order_relaxed); }

 private:
  friend class Lease;
  void lock() const noexcept {
    while (busy_.test_and_set(std::memory_order_acquire)) {
    }
  }
  void unlock() const noexcept { busy_.clear(std::memory_order_release); }
  bool has_value() const noexcept { return !taken_; }
  bool free() const noexcept { return !leased_; }
  // With Python's lock let go: the thread that writes may need it.
  void wait_until(bool (Cell::*condition)() const noexcept) const;

  trace::ValuePtr value_;  // this and the next two only under the lock
  bool leased_ = false;
  bool taken_ = false;  // leased, and the value's memory is being given away
  mutable std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  int device_;
  std::atomic<const void*> lazy_{nullptr};
};

// The right to write a cell. Holds no lock: readers see the old value until put() or take(). Who
// needs several cells takes their leases in the order of their addresses (see Leases), and waits
// for no cell while it holds one that is taken.
class Lease {
 public:
  Lease() noexcept = default;
  explicit Lease(Cell& cell);
  Lease(Lease&& other) noexcept
      : cell_(std::exchange(other.cell_, nullptr)), took_(std::move(other.took_)) {}
  Lease& operator=(Lease&& other) noexcept;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { end(); }

  // As long as nothing was put; only the lease's holder changes it, so no lock is needed.
  const trace::ValuePtr& value() const noexcept { return cell_->value_; }
  // Gives the value's memory away: true if the cell still holds `value` and, beside the caller's
  // `references`, nobody else does. From then on readers wait for put().
  bool take(const trace::ValuePtr& value, uint32_t references);
  // Lets go of the value that was taken: its memory is counted once, as the result's.
  void forget() noexcept { took_.reset(); }
  // The new value; finish() also ends the write.
  void put(trace::ValuePtr value) noexcept;
  void finish(trace::ValuePtr value) noexcept;
  // Without a new value: the old one is there again, though its memory may be gone.
  void end() noexcept;

 private:
  Cell* cell_ = nullptr;
  trace::ValuePtr took_;
};

// Leases on several cells, each once.
class Leases {
 public:
  // Adds a cell to be leased by begin().
  void add(Cell* cell) { cells_.push_back(cell); }
  void begin();
  // For a cell that was added.
  Lease& of(const Cell* cell) noexcept;
  bool single() const noexcept { return leases_.size() == 1; }
  void end() noexcept { leases_.clear(); }

 private:
  c10::SmallVector<Cell*, 2> cells_;
  c10::SmallVector<Lease, 2> leases_;  // by address
};

// Of a storage that is copied on write, or was a moment ago.
Cell* lazy_cell(const c10::StorageImpl& storage);

// The cell of a tpu storage or of the storage of a tpu tensor.
inline Cell* cell_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get_deleter() == &c10::impl::cow::cow_deleter) [[unlikely]] {
    return lazy_cell(storage);
  }
  return static_cast<Cell*>(data.get_context());
}
inline Cell* cell_of(const c10::TensorImpl& tensor) {
  return cell_of(*tensor.unsafe_storage().unsafeGetStorageImpl());
}

// A DataPtr that owns a new cell. Its address is a number of its own, unique per allocation and
// never mapped: PyTorch compares addresses to find aliases, but nobody may read through one. Later
// ones are larger.
void* take_address(size_t nbytes);
void delete_cell(void* cell);  // the deleter of such a DataPtr
c10::DataPtr make_cell_ptr(int device, size_t nbytes, trace::ValuePtr value = {});

// The storage behind new tensors.
c10::intrusive_ptr<c10::StorageImpl> make_storage(int device, size_t nbytes,
                                                  trace::ValuePtr value = {});

// Grows or shrinks, keeping the common prefix of the contents (as UntypedStorage.resize_ does).
void resize_storage(c10::StorageImpl& storage, size_t nbytes);

}  // namespace torch_tpu::device
