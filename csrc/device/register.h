// Makes "tpu" a device of this process.
#pragma once

namespace torch_tpu::device {

// Names PrivateUse1 "tpu" and registers the hooks. Guard, allocators and kernels register
// themselves when the library is loaded. Idempotent; starts nothing. Throws when another backend
// has the slot.
void register_backend();

}  // namespace torch_tpu::device
