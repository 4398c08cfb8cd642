// The device allocator and the pinned host allocator as PyTorch knows them. Neither hands out
// device memory: an allocation is a cell, and PJRT makes the array when a value is first written to
// it.
#pragma once

#include <cstdint>

#include <c10/core/Allocator.h>

namespace torch_tpu::device {

// Of PrivateUse1; process-wide.
c10::Allocator* allocator();

// Throws c10::OutOfMemoryError when `nbytes` more cannot fit: more than the device has in all, or
// past the limit set for the process. Starts the client.
void check_room(int device, size_t nbytes);

// Bytes of memory the device has, 0 when unknown; asked once per device. Starts the client.
int64_t total_memory(int device);
// Bytes free by our own count (the plugin's where it keeps one), 0 when unknown.
int64_t free_memory(int device);

// Page-aligned host memory that transfers can read in place.
c10::Allocator* pinned_allocator();
// Whether `data` lies in a live pinned allocation (anywhere inside it).
bool is_pinned(const void* data) noexcept;

}  // namespace torch_tpu::device
