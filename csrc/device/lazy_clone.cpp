#include "csrc/device/lazy_clone.h"

#include <memory>
#include <mutex>
#include <unordered_map>

#include <c10/core/impl/COWDeleter.h>
#include <torch/library.h>

#include "csrc/base/fork.h"
#include "csrc/device/allocator.h"
#include "csrc/device/tensor.h"

namespace torch_tpu::device {
namespace {

using c10::impl::cow::COWDeleterContext;

struct Lazy {
  Cell* cell;
  c10::StorageImpl* storage;     // which owns the context that owns the cell
  std::shared_ptr<int> holders;  // how many storages have this address
};

// The cells of storages that are copied on write, by context. Few, and gone with their storages.
struct Book {
  std::mutex mutex;
  std::unordered_map<const void*, Lazy> entries;
};

Book& book() {
  static auto* all = new Book();  // tensors may die after main
  return *all;
}

// Called with the context, by the storage's end.
void drop_cell(void* raw) {
  auto* cell = static_cast<Cell*>(raw);
  if (!base::in_bad_fork()) {  // there, another thread may have held the lock
    const std::lock_guard lock(book().mutex);
    const auto at = book().entries.find(cell->lazy());
    if (at != book().entries.end()) {
      --*at->second.holders;
      book().entries.erase(at);
    }
  }
  delete cell;
}

// Not through set_data_ptr: PyTorch would copy the memory itself, by address, at a write it sees.
void put_pointer(c10::StorageImpl& storage, void* address, void* context, c10::DeleterFnPtr end) {
  const c10::Device device = storage.device();
  storage._mutable_data_ptr_no_checks() = c10::DataPtr(address, context, end, device);
}

// Under the book's lock.
std::shared_ptr<int> mark(c10::StorageImpl& storage, Cell* cell, void* address,
                          std::shared_ptr<int> holders) {
  auto* context = new COWDeleterContext(std::unique_ptr<void, c10::DeleterFnPtr>(cell, &drop_cell));
  put_pointer(storage, address, context, &c10::impl::cow::cow_deleter);
  cell->set_lazy(context);
  ++*holders;
  book().entries.insert({context, {cell, &storage, holders}});
  return holders;
}

}  // namespace

Cell* lazy_cell(const c10::StorageImpl& storage) {
  const std::lock_guard lock(book().mutex);
  void* context = storage.data_ptr().get_context();
  const auto at = book().entries.find(context);
  return at == book().entries.end() ? static_cast<Cell*>(context) : at->second.cell;
}

at::Tensor lazy_clone(const at::Tensor& self) {
  c10::StorageImpl& storage = *self.storage().unsafeGetStorageImpl();
  Cell* cell = cell_of(storage);
  void* address = const_cast<void*>(storage.data_ptr().get());
  auto copy = make_storage(cell->device(), storage.nbytes(), cell->load());
  Cell* its = cell_of(*copy);
  {
    const std::lock_guard lock(book().mutex);
    const auto at = book().entries.find(cell->lazy());
    std::shared_ptr<int> holders;
    if (at != book().entries.end()) {
      holders = at->second.holders;
    } else {
      storage._mutable_data_ptr_no_checks().release_context();
      holders = mark(storage, cell, address, std::make_shared<int>(0));
    }
    copy->_mutable_data_ptr_no_checks().release_context();
    mark(*copy, its, address, std::move(holders));
  }
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(copy)), self.key_set().remove(c10::DispatchKey::ADInplaceOrView),
      self.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(self.sizes(), self.strides(),
                                                   self.storage_offset());
  return out;
}

void materialize(Cell& cell) {
  const std::lock_guard lock(book().mutex);
  const auto at = book().entries.find(cell.lazy());
  if (at == book().entries.end()) return;  // another thread was first
  TORCH_INTERNAL_ASSERT(at->second.storage->data_ptr().get_context() == at->first,
                        "a storage that is copied on write was given to another owner");
  const Lazy lazy = std::move(at->second);
  book().entries.erase(at);
  cell.set_lazy(nullptr);
  c10::StorageImpl& storage = *lazy.storage;
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  void* address = data.get();
  auto* context = static_cast<COWDeleterContext*>(data.release_context());
  auto last = std::get<COWDeleterContext::LastReference>(context->decrement_refcount());
  last.release();  // the cell goes on
  if (--*lazy.holders > 0) address = take_address(storage.nbytes());
  put_pointer(storage, address, &cell, &delete_cell);
}

namespace {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_lazy_clone", TORCH_FN(lazy_clone)); }

}  // namespace
}  // namespace torch_tpu::device
