// Event: the completion of asynchronous work. Move-only owner.
#pragma once

#include <functional>
#include <utility>

#include "csrc/pjrt/api.h"

namespace torch_tpu::pjrt {

// A default-constructed Event stands for work that is already done. The methods
// may be called from several threads; moving or destroying may not race them.
class Event {
 public:
  Event() noexcept = default;
  // Takes ownership; `event` may be null.
  Event(const PJRT_Api* api, PJRT_Event* event) noexcept : api_(api), event_(event) {}
  Event(Event&& other) noexcept : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { reset(); }

  explicit operator bool() const noexcept { return event_ != nullptr; }
  PJRT_Event* raw() const noexcept { return event_; }
  PJRT_Event* release() noexcept { return std::exchange(event_, nullptr); }
  void reset() noexcept;

  // True once the work is done, also when it failed.
  bool is_ready() const;
  // Blocks; throws the Error the work failed with. May be called repeatedly.
  void await() const;

  // Calls back exactly once, with null or the error, which lives for the call
  // only. It runs on the calling thread when the event is ready already, else on
  // a thread of the plugin: keep it short and do not call back into PJRT to
  // wait. Exceptions it throws are dropped. The Event may be destroyed before.
  using Callback = std::function<void(const Error*)>;
  void on_ready(Callback callback) const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Event* event_ = nullptr;
};

}  // namespace torch_tpu::pjrt
