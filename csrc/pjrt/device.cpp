// Device and DeviceDescription: one PJRT query per method.
#include "csrc/pjrt/device.h"

#include "csrc/pjrt/call.h"

namespace torch_tpu::pjrt {
namespace {

PJRT_DeviceDescription* description_of(const PJRT_Api* api, PJRT_Device* device) {
  auto args = make_args<PJRT_Device_GetDescription_Args>();
  args.device = device;
  TORCH_TPU_PJRT_CALL(api, PJRT_Device_GetDescription, args);
  return args.device_description;
}

std::optional<int64_t> if_set(int64_t value, bool is_set) {
  return is_set ? std::optional<int64_t>(value) : std::nullopt;
}

}  // namespace

int DeviceDescription::id() const {
  auto args = make_args<PJRT_DeviceDescription_Id_Args>();
  args.device_description = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_DeviceDescription_Id, args);
  return args.id;
}

int DeviceDescription::process_index() const {
  auto args = make_args<PJRT_DeviceDescription_ProcessIndex_Args>();
  args.device_description = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_DeviceDescription_ProcessIndex, args);
  return args.process_index;
}

std::string DeviceDescription::kind() const {
  auto args = make_args<PJRT_DeviceDescription_Kind_Args>();
  args.device_description = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_DeviceDescription_Kind, args);
  return std::string(args.device_kind, args.device_kind_size);
}

std::string DeviceDescription::debug_string() const {
  auto args = make_args<PJRT_DeviceDescription_DebugString_Args>();
  args.device_description = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_DeviceDescription_DebugString, args);
  return std::string(args.debug_string, args.debug_string_size);
}

NamedValues DeviceDescription::attributes() const {
  auto args = make_args<PJRT_DeviceDescription_Attributes_Args>();
  args.device_description = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_DeviceDescription_Attributes, args);
  return from_pjrt(args.attributes, args.num_attributes);
}

Device::Device(const PJRT_Api* api, PJRT_Device* device, int local_ordinal)
    : DeviceDescription(api, description_of(api, device)),
      device_(device),
      local_ordinal_(local_ordinal) {}

int Device::local_hardware_id() const {
  auto args = make_args<PJRT_Device_LocalHardwareId_Args>();
  args.device = device_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Device_LocalHardwareId, args);
  return args.local_hardware_id;
}

PJRT_Memory* Device::default_memory() const {
  auto args = make_args<PJRT_Device_DefaultMemory_Args>();
  args.device = device_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Device_DefaultMemory, args);
  return args.memory;
}

std::optional<MemoryStats> Device::memory_stats() const {
  auto args = make_args<PJRT_Device_MemoryStats_Args>();
  args.device = device_;
  try {
    TORCH_TPU_PJRT_CALL(api_, PJRT_Device_MemoryStats, args);
  } catch (const Error& error) {
    if (error.is_unimplemented()) return std::nullopt;
    throw;
  }
  MemoryStats stats;
  stats.bytes_in_use = args.bytes_in_use;
  stats.peak_bytes_in_use = if_set(args.peak_bytes_in_use, args.peak_bytes_in_use_is_set);
  stats.num_allocs = if_set(args.num_allocs, args.num_allocs_is_set);
  stats.largest_alloc_size = if_set(args.largest_alloc_size, args.largest_alloc_size_is_set);
  stats.bytes_limit = if_set(args.bytes_limit, args.bytes_limit_is_set);
  stats.bytes_reserved = if_set(args.bytes_reserved, args.bytes_reserved_is_set);
  stats.largest_free_block_bytes =
      if_set(args.largest_free_block_bytes, args.largest_free_block_bytes_is_set);
  stats.pool_bytes = if_set(args.pool_bytes, args.pool_bytes_is_set);
  return stats;
}

}  // namespace torch_tpu::pjrt
