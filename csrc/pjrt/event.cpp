// Event: waiting and callbacks.
#include "csrc/pjrt/event.h"

#include <memory>
#include <optional>

#include "csrc/base/happens.h"
#include "csrc/pjrt/call.h"

namespace torch_tpu::pjrt {
namespace {

struct Pending {
  const PJRT_Api* api;
  Event::Callback callback;
};

void call_back(PJRT_Error* error, void* user_arg) {
  base::happens_after(user_arg);
  const std::unique_ptr<Pending> pending(static_cast<Pending*>(user_arg));
  try {
    if (error == nullptr) {
      pending->callback(nullptr);
    } else {
      const Error taken = take_error(pending->api, error, "PJRT_Event_OnReady");
      pending->callback(&taken);
    }
  } catch (...) {
    // We are on a thread of the plugin: nobody above could catch it.
  }
}

}  // namespace

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    reset();
    api_ = other.api_;
    event_ = std::exchange(other.event_, nullptr);
  }
  return *this;
}

void Event::reset() noexcept {
  if (event_ == nullptr) return;
  auto args = make_args<PJRT_Event_Destroy_Args>();
  args.event = std::exchange(event_, nullptr);
  TORCH_TPU_PJRT_CALL_NOEXCEPT(api_, PJRT_Event_Destroy, args);
}

bool Event::is_ready() const {
  if (event_ == nullptr) return true;
  auto args = make_args<PJRT_Event_IsReady_Args>();
  args.event = event_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Event_IsReady, args);
  return args.is_ready;
}

void Event::await() const {
  if (event_ == nullptr) return;
  auto args = make_args<PJRT_Event_Await_Args>();
  args.event = event_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Event_Await, args);
}

void Event::on_ready(Callback callback) const {
  auto pending = std::make_unique<Pending>(Pending{api_, std::move(callback)});
  if (event_ == nullptr) {
    call_back(nullptr, pending.release());
    return;
  }
  auto args = make_args<PJRT_Event_OnReady_Args>();
  args.event = event_;
  args.callback = call_back;
  args.user_arg = pending.get();
  base::happens_before(pending.get());
  TORCH_TPU_PJRT_CALL(api_, PJRT_Event_OnReady, args);
  static_cast<void>(pending.release());  // call_back owns it, and may have freed it already
}

}  // namespace torch_tpu::pjrt
