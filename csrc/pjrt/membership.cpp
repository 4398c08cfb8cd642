#include "csrc/pjrt/membership.h"

#include <mutex>
#include <stdexcept>

#include "csrc/pjrt/runtime.h"

namespace torch_tpu::pjrt {
namespace {

std::mutex mutex;

Membership& instance() {
  static auto* made = new Membership();  // leaked: the client may outlive static destructors
  return *made;
}

}  // namespace

void set_membership(Membership membership) {
  if (Runtime::started()) {
    throw std::runtime_error("The PJRT client has started: it cannot span processes any more.");
  }
  std::lock_guard lock(mutex);
  instance() = std::move(membership);
}

Membership current_membership() {
  std::lock_guard lock(mutex);
  return instance();
}

}  // namespace torch_tpu::pjrt
