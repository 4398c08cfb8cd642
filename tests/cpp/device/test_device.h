// The device of the tests of csrc/device and csrc/dispatch: XLA:CPU with two devices, named "tpu"
// in PyTorch as the import of the native module does it. No Python.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "csrc/device/current.h"
#include "csrc/device/register.h"
#include "csrc/device/tensor.h"

namespace torch_tpu::device::testing {

inline constexpr int kDevices = 2;

// Skips where no plugin is named. The variables are set before anything reads them.
class DeviceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (const char* plugin = std::getenv("TORCH_TPU_TEST_PLUGIN")) {
      setenv("TORCH_TPU_PLUGIN", plugin, 1);
    }
    setenv("TORCH_TPU_CPU_DEVICES", std::to_string(kDevices).c_str(), 1);
    if (std::getenv("TORCH_TPU_CACHE_DIR") == nullptr) setenv("TORCH_TPU_CACHE_DIR", "off", 1);
    register_backend();
  }
  void SetUp() override {
    if (std::getenv("TORCH_TPU_TEST_PLUGIN") == nullptr) {
      GTEST_SKIP() << "TORCH_TPU_TEST_PLUGIN is not set";
    }
  }
};

// A tpu tensor with these elements.
inline at::Tensor on_device(const std::vector<float>& values, c10::IntArrayRef sizes,
                            int device = 0) {
  const at::Tensor host = at::tensor(values).view(sizes);
  return make_tensor(host.sizes(), host.strides(), host.scalar_type(), device,
                     upload(host, device));
}

inline std::vector<float> elements(const at::Tensor& tensor) {
  const at::Tensor host = download(tensor).contiguous();
  const float* data = host.const_data_ptr<float>();
  return std::vector<float>(data, data + host.numel());
}

#define EXPECT_ERROR(expression, type, part)                                            \
  try {                                                                                 \
    (void)(expression);                                                                 \
    ADD_FAILURE() << "expected an error: " << part;                                     \
  } catch (const type& error) {                                                         \
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what(); \
  }

}  // namespace torch_tpu::device::testing
