#include "csrc/device/cell.h"

#include <algorithm>
#include <cstring>

#include <ATen/EmptyTensor.h>
#include <c10/core/AutogradState.h>

#include "csrc/device/allocator.h"
#include "csrc/device/current.h"
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

void* take_address(size_t nbytes) {
  const uint64_t span = std::max(kAlignment, (nbytes + kAlignment - 1) & ~(kAlignment - 1));
  const uint64_t start = next_address.fetch_add(span, std::memory_order_relaxed);
  return reinterpret_cast<void*>(kFirstAddress | (start & (kFirstAddress - 1)));
}

void delete_cell(void* cell) { delete static_cast<Cell*>(cell); }

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

c10::DataPtr make_cell_ptr(int device, size_t nbytes, trace::ValuePtr value) {
  keep_backward_on_this_thread();
  auto* cell = new Cell(device);
  if (value) cell->store(std::move(value));
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
  if (nbytes == 0) {
    cell->store({});
    rehome(storage, nullptr);  // FSDP takes a null address for "freed"
  } else {
    check_room(cell->device(), nbytes);
    if (const trace::ValuePtr value = cell->load()) cell->store(resize_value(value, nbytes));
    if (nbytes > old_nbytes) rehome(storage, take_address(nbytes));
  }
  storage.set_nbytes(nbytes);
}

}  // namespace torch_tpu::device
