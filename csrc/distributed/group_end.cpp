// How a group ends: all its calls done, failed or given up, and its thread told to stop.
#include "csrc/base/gil.h"
#include "csrc/base/interrupt.h"
#include "csrc/distributed/group.h"

namespace torch_tpu::distributed {

void Group::fail_all(const std::function<std::string(const Collective*)>& text) {
  const std::vector<CollectivePtr> calls = outstanding();
  {
    const std::exception_ptr error = make_error(text(calls.empty() ? nullptr : calls[0].get()));
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
  }
  for (const CollectivePtr& call : outstanding()) settle(call, make_error(text(call.get())));
}

void Group::shutdown(bool in_destructor) {
  const base::WithoutGil released;
  const auto over = [this] { return outstanding_.empty() || failure_; };
  std::unique_lock lock(mutex_);
  if (in_destructor) {
    settled_.wait(lock, over);
  } else {
    base::wait_interruptibly(settled_, lock, over);
  }
  if (!failure_) failure_ = make_error("process group '" + info_.name + "' was destroyed");
}

void Group::stop() {
  const base::WithoutGil released;
  const std::lock_guard order(order_);
  stopping_ = true;
  queued_.notify_all();
}

void Group::abort(const std::string& reason) {
  fail_all([&](const Collective* call) {
    return (call != nullptr ? describe(info_, *call) + ": " : std::string()) + reason;
  });
}

}  // namespace torch_tpu::distributed
