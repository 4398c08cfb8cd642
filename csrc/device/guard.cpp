// The device guard: how the rest of PyTorch changes device and stream and uses events on "tpu".
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "csrc/device/current.h"
#include "csrc/device/stream.h"

namespace torch_tpu::device {
namespace {

Event* as_event(void* event) { return static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kTpu; }

  c10::Device exchangeDevice(c10::Device device) const override {
    check_type(device);
    return make_device(exchange_device(device.index()));
  }
  c10::Device getDevice() const override { return make_device(current_device()); }
  void setDevice(c10::Device device) const override {
    check_type(device);
    set_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_device_unchecked(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    auto& has = capability.capability_data.supported_scalar_types;
    has.has_Bool = has.has_Char = has.has_Short = has.has_Int = has.has_Long = 1;
    has.has_Byte = has.has_UInt16 = has.has_UInt32 = has.has_UInt64 = 1;
    has.has_Float8_e4m3fn = has.has_Float8_e5m2 = has.has_BFloat16 = has.has_Half = 1;
    has.has_Float = has.has_Double = has.has_ComplexHalf = 1;
    has.has_ComplexFloat = has.has_ComplexDouble = 1;
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(check_device(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(check_device(device.index()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return pool_stream(check_device(device.index()));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return new_stream(check_device(device.index()));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    return idle(check_device(stream.device_index()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(check_device(stream.device_index()));
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    synchronize(check_device(index));
  }

  // PyTorch makes the event on its first record and keeps it for the later ones.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag) const override {
    const int device = check_device(stream.device_index());
    TORCH_CHECK(index == -1 || index == device, "Event device index ", int{index},
                " does not match recording stream's device index ", device, ".");
    if (*event == nullptr) *event = new Event();
    as_event(*event)->record(device);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    return event == nullptr || as_event(event)->query();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) as_event(event)->synchronize();
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before calculating elapsed time.");
    return as_event(start)->elapsed_ms(*as_event(end));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete as_event(event);
  }

 private:
  static void check_type(c10::Device device) {
    TORCH_CHECK(device.type() == kTpu, "Expected a tpu device, but got ", device);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace torch_tpu::device
