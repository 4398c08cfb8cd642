#include "csrc/base/interrupt.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

namespace torch_tpu::base {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::atomic<int> looks{0};
std::atomic<bool> signalled{false};

void look() {
  ++looks;
  if (signalled) throw Interrupted();
}

class Interrupt : public testing::Test {
 protected:
  void SetUp() override {
    looks = 0;
    signalled = false;
    set_interrupt_check(&look);
  }
  void TearDown() override { set_interrupt_check(nullptr); }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;
};

TEST_F(Interrupt, WhatIsReadyIsNotWaitedFor) {
  ready_ = true;
  std::unique_lock lock(mutex_);
  wait_interruptibly(changed_, lock, [this] { return ready_; });
  EXPECT_EQ(looks, 0);
  EXPECT_TRUE(lock.owns_lock());
}

TEST_F(Interrupt, AWaitKeepsItsTime) {
  std::unique_lock lock(mutex_);
  const auto start = Clock::now();
  EXPECT_FALSE(wait_interruptibly(changed_, lock, start + 250ms, [this] { return ready_; }));
  EXPECT_GE(Clock::now() - start, 250ms);
  EXPECT_GE(looks, 1);
  EXPECT_TRUE(lock.owns_lock());
}

TEST_F(Interrupt, ASignalEndsAWaitThatHasNoEnd) {
  std::thread sender([] {
    std::this_thread::sleep_for(50ms);
    signalled = true;
  });
  std::unique_lock lock(mutex_);
  EXPECT_THROW(wait_interruptibly(changed_, lock, [this] { return ready_; }), Interrupted);
  EXPECT_FALSE(lock.owns_lock());  // nobody is kept out by who was interrupted
  sender.join();
}

TEST_F(Interrupt, AWaitThatLooksForSignalsIsStillWokenUp) {
  std::thread keeper([this] {
    std::this_thread::sleep_for(150ms);
    {
      const std::lock_guard lock(mutex_);
      ready_ = true;
    }
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  wait_interruptibly(changed_, lock, [this] { return ready_; });
  EXPECT_TRUE(ready_);
  lock.unlock();
  keeper.join();
}

}  // namespace
}  // namespace torch_tpu::base
