#include "csrc/trace/promise.h"

#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "csrc/base/interrupt.h"

namespace torch_tpu::trace {
namespace {

using namespace std::chrono_literals;

TEST(Promise, WakesWhoWaits) {
  Promise promise;
  EXPECT_FALSE(promise.done());
  EXPECT_FALSE(promise.wait_for(1ms));
  int called = 0;
  promise.on_done([&] { ++called; });
  std::thread keeper([&] { EXPECT_TRUE(promise.finish()); });
  promise.wait();
  keeper.join();
  EXPECT_EQ(called, 1);
  promise.on_done([&] { ++called; });  // at once
  EXPECT_EQ(called, 2);
  EXPECT_NO_THROW(promise.rethrow());
}

TEST(Promise, TheFirstEndCounts) {
  Promise promise;
  EXPECT_TRUE(promise.finish(std::make_exception_ptr(std::runtime_error("dead"))));
  EXPECT_FALSE(promise.finish());
  EXPECT_TRUE(promise.wait_for(0ms));
  EXPECT_THROW(promise.rethrow(), std::runtime_error);
}

TEST(Promise, ASignalEndsTheWaitAndNotTheWork) {
  Promise promise;
  base::set_interrupt_check([] { throw base::Interrupted(); });
  EXPECT_THROW(promise.wait(), base::Interrupted);
  EXPECT_THROW(promise.wait_for(10s), base::Interrupted);
  base::set_interrupt_check(nullptr);
  EXPECT_FALSE(promise.done());
  EXPECT_TRUE(promise.finish());
  promise.wait();
}

}  // namespace
}  // namespace torch_tpu::trace
