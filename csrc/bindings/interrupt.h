// Lets waits in C++ end when a signal's handler raises: see csrc/base/interrupt.h.
#pragma once

namespace torch_tpu::bindings {

// Once, when the module is imported.
void install_interrupt_check();

}  // namespace torch_tpu::bindings
