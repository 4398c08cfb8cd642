// Code is compiled by one thread, the one that claims it; the others wait or go on without.
#include "csrc/trace/code.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace torch_tpu::trace {
namespace {

TEST(Code, OneOfManyThreadsClaimsIt) {
  for (int round = 0; round < 50; ++round) {
    Code code;
    std::atomic<int> claims{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        if (code.claim()) ++claims;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(claims, 1);
    EXPECT_EQ(code.state(), Code::State::kCompiling);
  }
}

TEST(Code, WhoWaitsSeesTheEnd) {
  Code code;
  ASSERT_TRUE(code.claim());
  std::thread waiter([&] {
    code.wait();
    EXPECT_EQ(code.state(), Code::State::kFailed);
    EXPECT_EQ(code.failure(), "too large");
  });
  code.fail("too large");
  waiter.join();
  code.wait();  // nothing to wait for
  EXPECT_FALSE(code.claim());
}

TEST(Code, WhatIsAbandonedCanBeClaimedAgain) {
  Code code;
  ASSERT_TRUE(code.claim());
  EXPECT_FALSE(code.claim());
  code.abandon();
  EXPECT_EQ(code.state(), Code::State::kAbsent);
  EXPECT_TRUE(code.claim());
}

}  // namespace
}  // namespace torch_tpu::trace
