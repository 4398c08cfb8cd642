// Ops from PyTorch's dispatcher down to the device and back, without Python: results, and how many
// programs they took.
#include <thread>

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>

#include "csrc/cache/program_cache.h"
#include "csrc/device/stream.h"
#include "tests/cpp/dispatch/test_dispatch.h"

namespace torch_tpu::dispatch {
namespace {

using testing::elements;
using testing::on_device;

class RunTest : public testing::DispatchTest {
 protected:
  void TearDown() override { note_mode(base::Mode::kStrict); }
  static uint64_t misses() { return cache::ProgramCache::get().stats().misses; }
};

TEST_F(RunTest, AnOpGivesTheCpusResult) {
  const at::Tensor x = on_device({1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(elements(at::mm(x, x)), (std::vector<float>{7, 10, 15, 22}));
  EXPECT_EQ(elements(at::add(x, x, 0.5)), (std::vector<float>{1.5f, 3, 4.5f, 6}));
}

TEST_F(RunTest, ASecondCallFindsItsProgram) {
  const at::Tensor x = on_device(std::vector<float>(13, 2), {13});
  const uint64_t before = misses();
  at::mul(x, 3.0);
  EXPECT_EQ(misses(), before + 1);
  EXPECT_EQ(elements(at::mul(x, 4.0)), std::vector<float>(13, 8));
  EXPECT_EQ(misses(), before + 1);  // the number is no part of the program
}

TEST_F(RunTest, AWriteThroughAViewIsSeenInTheBase) {
  const at::Tensor base = on_device({0, 1, 2, 3, 4, 5}, {2, 3});
  base.as_strided({2}, {3}, 1).add_(10);  // column 1
  EXPECT_EQ(elements(base), (std::vector<float>{0, 11, 2, 3, 14, 5}));
}

TEST_F(RunTest, ACopyDoesNotSeeLaterWrites) {
  const at::Tensor x = on_device({1, 2, 3}, {3});
  const at::Tensor copy = x.clone();
  x.mul_(2);
  EXPECT_EQ(elements(copy), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(elements(x), (std::vector<float>{2, 4, 6}));
}

TEST_F(RunTest, AnOutTensorIsResized) {
  at::Tensor out = device::make_tensor({0}, {1}, at::kFloat, 0);
  const at::Tensor x = on_device({1, 2}, {2});
  at::add_out(out, x, x);
  EXPECT_EQ(elements(out), (std::vector<float>{2, 4}));
}

TEST_F(RunTest, ABadIndexIsAnErrorByTheNextRead) {
  const at::Tensor x = on_device({1, 2, 3}, {3});
  const at::Tensor index = at::arange(2, 5).to(x.device());
  const auto gather = [&] {
    const at::Tensor taken = at::gather(x, 0, index);
    device::synchronize(0);
  };
  EXPECT_ERROR(gather(), c10::Error, "index 4 is out of bounds for dimension 0 with size 3");
  device::synchronize(0);  // it is raised once
}

TEST_F(RunTest, DebugEagerGivesTheSameResults) {
  note_mode(base::Mode::kDebug);
  const at::Tensor x = on_device({1, 2, 3}, {3});
  EXPECT_EQ(elements(at::add(x, x)), (std::vector<float>{2, 4, 6}));
}

TEST_F(RunTest, ThreadsRunOpsAtTheSameTime) {
  const at::Tensor shared = on_device({1, 2, 3, 4}, {4});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      at::Tensor mine = shared.clone();
      for (int i = 0; i < 50; ++i) mine.add_(shared, t);
      const auto got = elements(mine);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(got[i], static_cast<float>(i + 1) * static_cast<float>(1 + 50 * t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace torch_tpu::dispatch
