// The device with its kernels registered, as the import of the native module does it, in Strict
// Eager.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/call/op.h"
#include "tests/cpp/device/test_device.h"

namespace torch_tpu::dispatch::testing {

using device::testing::elements;
using device::testing::on_device;

class DispatchTest : public device::testing::DeviceTest {
 protected:
  static void SetUpTestSuite() {
    device::testing::DeviceTest::SetUpTestSuite();
    static const bool once = [] {
      register_ops();
      return true;
    }();
    (void)once;
    note_mode(base::Mode::kStrict);
  }
};

// The key of a call, words only: what decides which program it gets.
inline std::vector<uint64_t> key_of(const char* op, const std::vector<c10::IValue>& args) {
  const Frame frame(find_op(op), args.data());
  return {frame.key.data(), frame.key.data() + frame.key.size()};
}

}  // namespace torch_tpu::dispatch::testing
