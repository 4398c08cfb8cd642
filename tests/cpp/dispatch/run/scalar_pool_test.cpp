// Small arrays of numbers are uploaded once.
#include "csrc/dispatch/run/scalar_pool.h"

#include <cstring>
#include <thread>

#include "tests/cpp/dispatch/test_dispatch.h"

namespace torch_tpu::dispatch {
namespace {

using stablehlo::DType;

class ScalarPoolTest : public testing::DispatchTest {
 protected:
  void TearDown() override { clear_scalar_pool(); }

  static trace::ValuePtr pack(const std::vector<float>& numbers, int device = 0) {
    return upload_pack(DType::kF32, numbers.data(), numbers.size(), device);
  }
  static std::vector<float> read(const trace::ValuePtr& value) {
    return testing::elements(
        device::make_tensor(value->dims(), value->strides(), at::kFloat, value->device(), value));
  }
};

TEST_F(ScalarPoolTest, TheSameNumbersAreTheSameValue) {
  const trace::ValuePtr one = pack({1, 2.5f});
  EXPECT_EQ(read(one), (std::vector<float>{1, 2.5f}));
  EXPECT_EQ(pack({1, 2.5f}), one);
  EXPECT_NE(pack({1, 2.5f}, 1), one);
  EXPECT_NE(pack({1, 2}), one);
  EXPECT_NE(pack({1}), one);
  clear_scalar_pool();
  EXPECT_NE(pack({1, 2.5f}), one);
}

TEST_F(ScalarPoolTest, ABitPatternOfAnotherTypeIsAnotherValue) {
  const float number = 1;
  int32_t bits = 0;
  std::memcpy(&bits, &number, sizeof(bits));
  EXPECT_NE(pack({number}), upload_pack(DType::kS32, &bits, 1, 0));
  EXPECT_NE(pack({0.0f}), pack({-0.0f}));
}

TEST_F(ScalarPoolTest, ALongPackIsNotKept) {
  const std::vector<float> numbers(100, 3);
  EXPECT_NE(pack(numbers), pack(numbers));
  EXPECT_EQ(read(pack(numbers)), numbers);
}

TEST_F(ScalarPoolTest, ThreadsGetTheNumbersTheyAskFor) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const std::vector<float> numbers{static_cast<float>(i % 50), static_cast<float>(t % 2)};
        EXPECT_EQ(read(pack(numbers)), numbers);
      }
    });
  }
  for (int i = 0; i < 20; ++i) clear_scalar_pool();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace torch_tpu::dispatch
