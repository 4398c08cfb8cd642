#include "csrc/base/interrupt.h"

#include <atomic>

namespace torch_tpu::base {
namespace {

std::atomic<InterruptCheck> installed{nullptr};

}  // namespace

void set_interrupt_check(InterruptCheck check) noexcept {
  installed.store(check, std::memory_order_release);
}

void check_interrupt() {
  if (const InterruptCheck check = installed.load(std::memory_order_acquire)) check();
}

}  // namespace torch_tpu::base
