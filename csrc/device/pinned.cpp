// The pinned host allocator: page-aligned memory with a register of what is live, so that
// is_pinned() can be answered for any address inside. XLA:CPU reads such memory in place (64-byte
// alignment).
#include <cstdlib>
#include <map>
#include <mutex>

#include <ATen/core/CachingHostAllocator.h>

#include "csrc/base/fork.h"
#include "csrc/device/allocator.h"

namespace torch_tpu::device {
namespace {

constexpr size_t kPage = 4096;

struct PinnedAllocator final : at::HostAllocator {
  // A forked child frees what it has inherited, and may pin memory of its own.
  PinnedAllocator() { base::hold_while_forking(mutex_); }
  c10::DataPtr allocate(size_t nbytes) override;
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }
  // A transfer keeps the tensor it reads from alive, so memory is never reused under it.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}  // nothing is cached
  at::HostStats get_stats() override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard lock(mutex_);
    for (auto* stat : all_stats()) stat->reset_accumulated();
    stats_.num_host_alloc = stats_.num_host_free = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard lock(mutex_);
    for (auto* stat : all_stats()) stat->reset_peak();
  }

  bool contains(const void* data) const noexcept;
  void release(void* data) noexcept;

 private:
  std::array<c10::CachingAllocator::Stat*, 4> all_stats() {
    return {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
            &stats_.allocated_bytes};
  }

  mutable std::mutex mutex_;
  std::map<uintptr_t, size_t> live_;  // start -> bytes
  at::HostStats stats_;
};

// Leaked: tensors may be freed while statics are destroyed.
PinnedAllocator& pinned() {
  static auto* instance = new PinnedAllocator();
  return *instance;
}

void release_pinned(void* data) { pinned().release(data); }

c10::DataPtr PinnedAllocator::allocate(size_t nbytes) {
  if (nbytes == 0) return c10::DataPtr(nullptr, c10::DeviceType::CPU);
  void* data = nullptr;
  if (posix_memalign(&data, kPage, nbytes) != 0) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "Cannot allocate ", nbytes,
                     " bytes of pinned host memory.");
  }
  c10::DataPtr owner(data, data, &std::free, c10::DeviceType::CPU);  // should the next line throw
  std::lock_guard lock(mutex_);
  live_.emplace(reinterpret_cast<uintptr_t>(data), nbytes);
  stats_.active_requests.increase(1);
  stats_.active_bytes.increase(nbytes);
  stats_.allocations.increase(1);
  stats_.allocated_bytes.increase(nbytes);
  stats_.num_host_alloc += 1;
  TORCH_INTERNAL_ASSERT(owner.compare_exchange_deleter(&std::free, &release_pinned));
  return owner;
}

void PinnedAllocator::release(void* data) noexcept {
  {
    std::lock_guard lock(mutex_);
    const auto entry = live_.find(reinterpret_cast<uintptr_t>(data));
    const size_t nbytes = entry->second;
    live_.erase(entry);
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(nbytes);
    stats_.allocations.decrease(1);
    stats_.allocated_bytes.decrease(nbytes);
    stats_.num_host_free += 1;
  }
  std::free(data);
}

bool PinnedAllocator::contains(const void* data) const noexcept {
  const auto address = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(mutex_);
  auto next = live_.upper_bound(address);
  if (next == live_.begin()) return false;
  const auto& [start, nbytes] = *--next;
  return address < start + nbytes;
}

REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &pinned())

}  // namespace

c10::Allocator* pinned_allocator() { return &pinned(); }

bool is_pinned(const void* data) noexcept { return pinned().contains(data); }

}  // namespace torch_tpu::device
