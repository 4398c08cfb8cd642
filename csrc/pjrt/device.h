// Device and DeviceDescription: views of objects that their client (or topology)
// owns. Copyable; valid as long as the owner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "csrc/pjrt/api.h"
#include "csrc/pjrt/named_value.h"

namespace torch_tpu::pjrt {

// What the plugin's allocator reports; only bytes_in_use is always there.
struct MemoryStats {
  int64_t bytes_in_use = 0;
  std::optional<int64_t> peak_bytes_in_use;
  std::optional<int64_t> num_allocs;
  std::optional<int64_t> largest_alloc_size;
  std::optional<int64_t> bytes_limit;
  std::optional<int64_t> bytes_reserved;
  std::optional<int64_t> largest_free_block_bytes;
  std::optional<int64_t> pool_bytes;
};

// A device that may exist only on paper (a topology's).
class DeviceDescription {
 public:
  DeviceDescription(const PJRT_Api* api, PJRT_DeviceDescription* raw) noexcept
      : api_(api), raw_(raw) {}

  PJRT_DeviceDescription* raw() const noexcept { return raw_; }
  int id() const;  // global
  int process_index() const;
  std::string kind() const;  // "cpu", "NVIDIA H200", "TPU v5 lite", ...
  std::string debug_string() const;
  NamedValues attributes() const;

 protected:
  const PJRT_Api* api_;
  PJRT_DeviceDescription* raw_;
};

class Device : public DeviceDescription {
 public:
  // `local_ordinal` is the position among the client's addressable devices, -1
  // for a device of another process.
  Device(const PJRT_Api* api, PJRT_Device* device, int local_ordinal);

  PJRT_Device* raw() const noexcept { return device_; }
  int local_ordinal() const noexcept { return local_ordinal_; }
  bool is_addressable() const noexcept { return local_ordinal_ >= 0; }
  int local_hardware_id() const;
  PJRT_Memory* default_memory() const;

  // Empty where the plugin has no such count (XLA:CPU).
  std::optional<MemoryStats> memory_stats() const;

 private:
  PJRT_Device* device_;
  int local_ordinal_;
};

}  // namespace torch_tpu::pjrt
