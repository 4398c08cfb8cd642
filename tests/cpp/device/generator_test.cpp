// Random state: 16 bytes on the host, from which draws take ranges that never overlap.
#include "csrc/device/generator.h"

#include <algorithm>
#include <thread>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "tests/cpp/device/test_device.h"

namespace torch_tpu::device {
namespace {

using Draw = std::pair<uint64_t, uint64_t>;

at::Generator make_generator(uint64_t seed, int device = 0) {
  at::Generator generator = at::make_generator<TpuGenerator>(device);
  generator.set_current_seed(seed);
  return generator;
}

TpuGenerator& tpu(const at::Generator& generator) { return *generator.get<TpuGenerator>(); }

class GeneratorTest : public testing::DeviceTest {};

TEST_F(GeneratorTest, ADrawBeginsWhereTheLastOneEnded) {
  const at::Generator generator = make_generator(5);
  EXPECT_EQ(tpu(generator).reserve(10), (Draw{5, 0}));
  EXPECT_EQ(tpu(generator).reserve(3), (Draw{5, 10}));
  EXPECT_EQ(tpu(generator).get_offset(), 13u);
}

TEST_F(GeneratorTest, ASeedBeginsAnew) {
  at::Generator generator = make_generator(5);
  tpu(generator).reserve(10);
  generator.set_current_seed(6);
  EXPECT_EQ(tpu(generator).reserve(1), (Draw{6, 0}));
}

TEST_F(GeneratorTest, ThreadsNeverShareAPartOfTheStream) {
  const at::Generator generator = make_generator(1);
  std::vector<std::vector<uint64_t>> starts(4);
  std::vector<std::thread> threads;
  for (auto& mine : starts) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) mine.push_back(tpu(generator).reserve(7).second);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<uint64_t> all;
  for (const auto& mine : starts) {
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i * 7);
}

TEST_F(GeneratorTest, TheStateComesBackAsItWas) {
  at::Generator generator = make_generator(9);
  tpu(generator).reserve(100);
  const at::Tensor state(generator.get_state());
  EXPECT_EQ(state.nbytes(), 16u);
  generator.set_current_seed(1);
  generator.set_state(state);
  EXPECT_EQ(tpu(generator).reserve(1), (Draw{9, 100}));
}

TEST_F(GeneratorTest, AStateOfAnotherSizeIsRefused) {
  at::Generator generator = make_generator(9);
  EXPECT_ERROR(generator.set_state(at::empty({15}, at::kByte)), c10::Error,
               "RNG state is wrong size: expected 16 bytes, got 15");
  EXPECT_EQ(generator.current_seed(), 9u);
}

TEST_F(GeneratorTest, ACopyGoesItsOwnWay) {
  const at::Generator generator = make_generator(3);
  const at::Generator copy = generator.clone();
  tpu(generator).reserve(10);
  EXPECT_EQ(tpu(copy).get_offset(), 0u);
  EXPECT_EQ(copy.current_seed(), 3u);
}

TEST_F(GeneratorTest, AStateMayBeShared) {
  const at::Generator generator = make_generator(3);
  const auto twin = generator.graphsafe_get_state();
  tpu(generator).reserve(10);
  EXPECT_EQ(tpu(twin).reserve(1), (Draw{3, 10}));
  EXPECT_EQ(tpu(generator).get_offset(), 11u);
}

TEST_F(GeneratorTest, SeedingAllReachesEveryDevice) {
  seed_all(42);
  for (int device : {0, 1, 63}) {
    EXPECT_EQ(default_generator(device).current_seed(), 42u) << device;
    EXPECT_EQ(default_generator(device).device(), make_device(device));
  }
}

TEST_F(GeneratorTest, AnOpDrawsFromTheGeneratorOfItsDevice) {
  const at::Generator own = make_generator(1, 1);
  EXPECT_EQ(&generator_for(own, 1), &tpu(own));
  EXPECT_EQ(&generator_for(std::nullopt, 1), &tpu(default_generator(1)));
  EXPECT_ERROR(generator_for(own, 0), c10::Error,
               "Expected a generator of device tpu:0 but found one of tpu:1");
  EXPECT_ERROR(generator_for(at::detail::createCPUGenerator(), 0), c10::Error,
               "Expected a 'tpu' device type for generator but found 'cpu'");
}

}  // namespace
}  // namespace torch_tpu::device
