// When DDP's phases began and ended, on the host's clock, as it wants to know of every device.
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace torch_tpu::distributed {
namespace {

class HostTimer final : public c10d::Timer {
 public:
  explicit HostTimer(c10::Device) {}

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start);
    const int64_t to = getTimeRef(end);
    // An iteration without unused parameters may leave one out, or be out of order.
    if (from < 0 || to < 0 || to < from) return std::nullopt;
    return to - from;
  }
};

}  // namespace
}  // namespace torch_tpu::distributed

namespace c10d {  // the macro wants it here

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::PrivateUse1,
                         torch_tpu::distributed::HostTimer)

}  // namespace c10d
