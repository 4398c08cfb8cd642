#include "csrc/device/cell.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include <ATen/EmptyTensor.h>
#include <c10/core/AutogradState.h>

#include "csrc/base/backoff.h"
#include "csrc/device/allocator.h"
#include "csrc/device/current.h"
#include "csrc/device/lazy_clone.h"
#include "csrc/device/tensor.h"
#include "csrc/ops/call.h"

namespace torch_tpu::device {
namespace {

// Addresses from 2^62 up to 2^63 belong to no process on the machines we run on, and a 64-bit
// signed integer still holds them. The counter wraps after 2^62 bytes, long after the first were
// freed.
constexpr uint64_t kFirstAddress = uint64_t{1} << 62;
constexpr uint64_t kAlignment = 256;
std::atomic<uint64_t> next_address{kAlignment};

// Moves the storage to another address; the cell stays, since others may hold a pointer to it.
void rehome(c10::StorageImpl& storage, void* address) {
  c10::DataPtr& data = storage.mutable_data_ptr();
  const c10::Device device = data.device();
  void* cell = data.release_context();
  storage.set_data_ptr_noswap(c10::DataPtr(address, cell, &delete_cell, device));
}

// The first bytes of `value` as a flat value of `nbytes` (zeros after its end), by way of the host.
trace::ValuePtr resize_value(const trace::ValuePtr& value, size_t nbytes) {
  const c10::ScalarType dtype = ops::to_scalar_type(value->dtype());
  // Dense in storage order: the value's strides are a permutation of contiguous ones.
  const at::Tensor old_host =
      download(make_tensor(value->dims(), value->strides(), dtype, value->device(), value));
  const size_t item = c10::elementSize(dtype);
  const size_t count = (nbytes + item - 1) / item;
  const at::Tensor host(at::detail::empty_cpu({static_cast<int64_t>(count)}, dtype));
  const size_t kept = std::min(old_host.nbytes(), host.nbytes());
  auto* bytes = static_cast<char*>(host.mutable_data_ptr());
  if (kept != 0) std::memcpy(bytes, old_host.const_data_ptr(), kept);
  std::memset(bytes + kept, 0, host.nbytes() - kept);
  return upload(host, value->device());
}

// Once per thread, at its first tensor; a user who sets it later has the last word. Autograd hands
// the backward of every device but the CPU to a thread of its own and waits for it, so that several
// devices are kept busy. Ours are busy by themselves, and the two wake-ups would only delay the
// launch.
void keep_backward_on_this_thread() {
  thread_local bool done = false;
  if (done) return;
  done = true;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace

void* take_address(size_t nbytes) {
  const uint64_t span = std::max(kAlignment, (nbytes + kAlignment - 1) & ~(kAlignment - 1));
  const uint64_t start = next_address.fetch_add(span, std::memory_order_relaxed);
  return reinterpret_cast<void*>(kFirstAddress | (start & (kFirstAddress - 1)));
}

void delete_cell(void* cell) { delete static_cast<Cell*>(cell); }

void Cell::wait_until(bool (Cell::*condition)() const noexcept) const {
  base::Backoff backoff;
  while (true) {
    backoff.pause();
    lock();
    const bool over = (this->*condition)();
    unlock();
    if (over) return;
  }
}

trace::ValuePtr Cell::exchange(trace::ValuePtr value) {
  while (true) {
    lock();
    if (!leased_) [[likely]] {
      if (lazy() != nullptr) [[unlikely]] {
        unlock();
        materialize(*this);
        continue;
      }
      std::swap(value, value_);
      unlock();
      return value;
    }
    unlock();
    wait_until(&Cell::free);
  }
}

Lease::Lease(Cell& cell) : cell_(&cell) {
  while (true) {
    cell.lock();
    const bool mine = !cell.leased_;
    if (mine) cell.leased_ = true;
    cell.unlock();
    if (mine) [[likely]] {
      if (cell.lazy() != nullptr) [[unlikely]] {
        materialize(cell);
      }
      return;
    }
    cell.wait_until(&Cell::free);
  }
}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  end();
  cell_ = std::exchange(other.cell_, nullptr);
  took_ = std::move(other.took_);
  return *this;
}

bool Lease::take(const trace::ValuePtr& value, uint32_t references) {
  cell_->lock();
  const bool sole = cell_->value_ == value && value->held_only_by(references + 1);
  if (sole) {
    took_ = std::move(cell_->value_);
    cell_->taken_ = true;
  }
  cell_->unlock();
  return sole;
}

void Lease::put(trace::ValuePtr value) noexcept {
  cell_->lock();
  std::swap(value, cell_->value_);
  cell_->taken_ = false;
  cell_->unlock();
  took_.reset();
}  // the old value is freed outside the lock

void Lease::finish(trace::ValuePtr value) noexcept {
  cell_->lock();
  std::swap(value, cell_->value_);
  cell_->taken_ = cell_->leased_ = false;
  cell_->unlock();
  cell_ = nullptr;
  took_.reset();
}

void Lease::end() noexcept {
  if (cell_ == nullptr) return;
  cell_->lock();
  if (cell_->taken_) cell_->value_ = std::move(took_);
  cell_->taken_ = cell_->leased_ = false;
  cell_->unlock();
  cell_ = nullptr;
}

void Leases::begin() {
  if (cells_.size() > 1) {
    std::sort(cells_.begin(), cells_.end(), std::less<>());
    cells_.erase(std::unique(cells_.begin(), cells_.end()), cells_.end());
  }
  for (Cell* cell : cells_) leases_.emplace_back(*cell);
}

Lease& Leases::of(const Cell* cell) noexcept {
  if (leases_.size() == 1) return leases_[0];
  const auto at = std::lower_bound(cells_.begin(), cells_.end(), cell, std::less<>());
  return leases_[static_cast<size_t>(at - cells_.begin())];
}

c10::DataPtr make_cell_ptr(int device, size_t nbytes, trace::ValuePtr value) {
  keep_backward_on_this_thread();
  auto* cell = new Cell(device, std::move(value));
  return c10::DataPtr(take_address(nbytes), cell, &delete_cell, make_device(device));
}

c10::intrusive_ptr<c10::StorageImpl> make_storage(int device, size_t nbytes,
                                                  trace::ValuePtr value) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                               make_cell_ptr(device, nbytes, std::move(value)),
                                               allocator(), /*resizable=*/true);
}

void resize_storage(c10::StorageImpl& storage, size_t nbytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const size_t old_nbytes = storage.nbytes();
  if (nbytes == old_nbytes) return;
  Cell* cell = cell_of(storage);
  Lease lease(*cell);
  if (nbytes == 0) {
    lease.finish({});
    rehome(storage, nullptr);  // FSDP takes a null address for "freed"
  } else {
    check_room(cell->device(), nbytes);
    if (lease.value()) lease.finish(resize_value(lease.value(), nbytes));
    if (nbytes > old_nbytes) rehome(storage, take_address(nbytes));
  }
  storage.set_nbytes(nbytes);
}

}  // namespace torch_tpu::device
