// What PyTorch asks of an accelerator without knowing which it is, and the registration.
#include <mutex>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>

#include "csrc/device/allocator.h"
#include "csrc/device/cell.h"
#include "csrc/device/current.h"
#include "csrc/device/generator.h"
#include "csrc/device/register.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::device {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  // PyTorch calls this early, also for questions: the client starts with the first tensor instead.
  void init() const override { check_not_forked(); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return pjrt::Runtime::available(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return pjrt::Runtime::started() && !pjrt::Runtime::in_bad_fork();
  }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(index));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(check_device(index));
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<TpuGenerator>(check_device(index));
  }

  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  // Addresses are numbers of our own and do not tell the device they are on.
  at::Device getDeviceFromPtr(void*) const override {
    TORCH_CHECK(false, "A tpu tensor has no address another library could read.");
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), nbytes);
  }
};

}  // namespace

void register_backend() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::register_privateuse1_backend("tpu");
    at::RegisterPrivateUse1HooksInterface(new Hooks());  // never freed
  });
}

}  // namespace torch_tpu::device
