// Which device a thread is on, how many there are, and the checks on device numbers. Counting
// starts the client only where the plugin cannot be asked otherwise.
#pragma once

#include <c10/core/Device.h>

namespace torch_tpu::device {

inline constexpr c10::DeviceType kTpu = c10::DeviceType::PrivateUse1;

// 0 when there is no plugin or it does not start.
int device_count() noexcept;

// The calling thread's device. A new thread is on device 0.
int current_device() noexcept;

// `index` as it is, or the current device for -1. Throws for a device that does not exist.
int check_device(int64_t index);

// Both check; exchange returns the previous device.
void set_device(int64_t index);
int exchange_device(int64_t index);
void set_device_unchecked(int index) noexcept;

inline c10::Device make_device(int index) {
  return c10::Device(kTpu, static_cast<c10::DeviceIndex>(index));
}

// Throws in a child forked after the client started.
void check_not_forked();

}  // namespace torch_tpu::device
