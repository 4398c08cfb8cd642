// Device numbers: how many there are, which one a thread is on, and what is said of wrong ones.
#include "csrc/device/current.h"

#include <thread>

#include <c10/core/DeviceGuard.h>

#include "tests/cpp/device/test_device.h"

namespace torch_tpu::device {
namespace {

class CurrentTest : public testing::DeviceTest {
 protected:
  void TearDown() override { set_device_unchecked(0); }
};

TEST_F(CurrentTest, DevicesAreCountedWithoutAClient) {
  EXPECT_EQ(device_count(), testing::kDevices);
}

TEST_F(CurrentTest, AThreadStartsOnDeviceZero) {
  set_device(1);
  int seen = -1;
  std::thread([&] { seen = current_device(); }).join();
  EXPECT_EQ(seen, 0);
  EXPECT_EQ(current_device(), 1);
}

TEST_F(CurrentTest, MinusOneIsTheCurrentDevice) {
  EXPECT_EQ(check_device(-1), 0);
  EXPECT_EQ(exchange_device(1), 0);
  EXPECT_EQ(check_device(-1), 1);
}

TEST_F(CurrentTest, AWrongNumberChangesNothingAndIsNamed) {
  EXPECT_ERROR(set_device(7), c10::Error, "tpu:7 was asked for");
  EXPECT_ERROR(exchange_device(-2), c10::Error, "there are only 2 tpu devices, tpu:0 to tpu:1");
  EXPECT_EQ(current_device(), 0);
}

TEST_F(CurrentTest, PyTorchsGuardComesBack) {
  {
    const c10::DeviceGuard guard(make_device(1));
    EXPECT_EQ(current_device(), 1);
  }
  EXPECT_EQ(current_device(), 0);
}

}  // namespace
}  // namespace torch_tpu::device
