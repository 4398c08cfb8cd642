#include "csrc/dispatch/run/scalar_pool.h"

#include <array>
#include <cstring>
#include <mutex>

#include "csrc/base/hash.h"
#include "csrc/device/tensor.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::dispatch {
namespace {

constexpr size_t kMaxBytes = 32;  // longer packs change too often to be worth keeping
constexpr size_t kSlots = 1024;

struct Slot {
  std::array<uint64_t, kMaxBytes / 8 + 1> key{};
  trace::ValuePtr value;
};

struct Pool {
  std::mutex mutex;
  std::array<Slot, kSlots> slots;
};

Pool& pool() {
  static auto* instance = new Pool();
  return *instance;
}

}  // namespace

trace::ValuePtr upload_once(stablehlo::DType dtype, const void* data, size_t count, int device) {
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  const int64_t dims[] = {static_cast<int64_t>(count)};
  const int64_t strides[] = {1};
  pjrt::Buffer buffer =
      runtime.client().from_host(data, device::buffer_type(dtype), dims, {},
                                 pjrt::HostSemantics::kOnlyDuringCall, runtime.device(device));
  return c10::make_intrusive<trace::DeviceValue>(buffer.release(), dtype, dims, strides, device,
                                                 /*donatable=*/false);
}

trace::ValuePtr upload_pack(stablehlo::DType dtype, const void* data, size_t count, int device) {
  const size_t bytes = count * static_cast<size_t>(stablehlo::dtype_bytes(dtype));
  if (bytes > kMaxBytes) return upload_once(dtype, data, count, device);
  std::array<uint64_t, kMaxBytes / 8 + 1> key{};
  key[0] = static_cast<uint64_t>(dtype) | count << 8 | static_cast<uint64_t>(device) << 32 |
           uint64_t{1} << 63;
  std::memcpy(&key[1], data, bytes);
  Slot& slot = pool().slots[base::hash_words(key.data(), key.size()) % kSlots];
  {
    std::lock_guard lock(pool().mutex);
    if (slot.key == key) return slot.value;
  }
  trace::ValuePtr value = upload_once(dtype, data, count, device);
  trace::ValuePtr dropped = value;
  {
    std::lock_guard lock(pool().mutex);
    slot.key = key;
    std::swap(slot.value, dropped);  // the old one is freed outside the lock
    value = slot.value;
  }
  return value;
}

void clear_scalar_pool() {
  std::lock_guard lock(pool().mutex);
  for (Slot& slot : pool().slots) slot = Slot();
}

}  // namespace torch_tpu::dispatch
