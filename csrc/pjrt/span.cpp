#include "csrc/pjrt/span.h"

#include <mutex>
#include <stdexcept>

#include "csrc/pjrt/runtime.h"

namespace torch_tpu::pjrt {
namespace {

std::mutex mutex;

Span& instance() {
  static auto* span = new Span();  // leaked: the client may outlive static destructors
  return *span;
}

}  // namespace

void set_span(Span span) {
  if (Runtime::started()) {
    throw std::runtime_error("The PJRT client has started: it cannot span processes any more.");
  }
  std::lock_guard lock(mutex);
  instance() = std::move(span);
}

Span current_span() {
  std::lock_guard lock(mutex);
  return instance();
}

}  // namespace torch_tpu::pjrt
