#include "csrc/device/allocator.h"

#include <algorithm>
#include <array>
#include <atomic>

#include <c10/core/CachingDeviceAllocator.h>

#include "csrc/device/cell.h"
#include "csrc/device/current.h"
#include "csrc/device/stream.h"
#include "csrc/pjrt/host_memory.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/value.h"

namespace torch_tpu::device {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingDeviceAllocator::DeviceStats;
using trace::Ledger;
using trace::MemoryCounts;

Stat make_stat(int64_t current, int64_t peak, int64_t allocated, int64_t freed) {
  Stat stat;
  stat.current = current;
  stat.peak = peak;
  stat.allocated = allocated;
  stat.freed = freed;
  return stat;
}

// For Python's questions; a forked child has no answer, and its lock may be held for ever.
Ledger& ledger_of(c10::DeviceIndex index) {
  check_not_forked();
  return Ledger::of(check_device(index));
}

struct TpuAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    const int device = current_device();
    check_room(device, nbytes);
    return make_cell_ptr(device, nbytes);
  }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "A tpu allocation has no address to copy from; copy tensors instead.");
  }

  bool initialized() override { return pjrt::Runtime::started(); }
  // Memory goes back to the plugin when the last tensor is gone; XLA:CPU's then stays with malloc.
  void emptyCache(c10::MempoolId_t) override { pjrt::release_freed_host_memory(); }
  // A value in use by a program stays alive until the program is done.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  // Small and large pools are not told apart: only the first entry (AGGREGATE) is filled.
  DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    Ledger& ledger = ledger_of(index);
    launch_pending(check_device(index));
    const MemoryCounts counts = ledger.counts();
    const Stat number =
        make_stat(counts.current_values, counts.peak_values, counts.allocations, counts.frees);
    const Stat bytes = make_stat(counts.current_bytes, counts.peak_bytes, counts.total_allocated,
                                 counts.total_freed);
    DeviceStats stats;
    stats.allocation[0] = stats.segment[0] = stats.active[0] = number;
    stats.allocated_bytes[0] = stats.reserved_bytes[0] = bytes;
    stats.reserved_bytes[0].peak = counts.peak_reserved_bytes;
    stats.active_bytes[0] = stats.requested_bytes[0] = bytes;
    stats.num_ooms = counts.out_of_memory;
    stats.num_device_alloc = counts.allocations;
    stats.num_device_free = counts.frees;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    ledger_of(index).reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex index) override { ledger_of(index).reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const int device = check_device(index);
    return {static_cast<size_t>(free_memory(device)), static_cast<size_t>(total_memory(device))};
  }
};

}  // namespace

c10::Allocator* allocator() {
  static auto* instance = new TpuAllocator();  // leaked: storages point to it to the very end
  return instance;
}

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, allocator())

int64_t total_memory(int device) {
  static std::array<std::atomic<int64_t>, Ledger::kMaxDevices> known{};  // 0: not asked yet
  auto& entry = known.at(static_cast<size_t>(device));
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  int64_t bytes = entry.load(std::memory_order_relaxed);
  if (bytes == 0) {
    bytes = runtime.device_memory(device);
    entry.store(bytes, std::memory_order_relaxed);
  }
  return bytes;
}

int64_t free_memory(int device) {
  const int64_t total = total_memory(device);
  const auto& devices = pjrt::Runtime::get().client().addressable_devices();
  launch_pending(device);
  int64_t used = Ledger::of(device).counts().current_bytes;
  if (const auto stats = devices.at(static_cast<size_t>(device)).memory_stats()) {
    used = stats->bytes_in_use;
  }
  return std::max<int64_t>(0, total - used);
}

void check_room(int device, size_t nbytes) {
  const int64_t total = total_memory(device);
  const auto bytes = static_cast<int64_t>(std::min<size_t>(nbytes, INT64_MAX));
  Ledger& ledger = Ledger::of(device);
  if (total > 0 && bytes > total) {
    ledger.throw_out_of_memory(bytes, "That is more than the device has.");
  }
  ledger.check_room(bytes);
}

}  // namespace torch_tpu::device
