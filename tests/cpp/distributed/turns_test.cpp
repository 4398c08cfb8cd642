#include "csrc/distributed/turns.h"

#include <atomic>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

namespace torch_tpu::distributed {
namespace {

using namespace std::chrono_literals;

auto in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

TEST(Turns, ComeInTheOrderTheyWereTaken) {
  Turns turns;
  Turn first(turns), second(turns), third(turns);
  EXPECT_TRUE(first.has_come());
  EXPECT_FALSE(second.has_come());
  EXPECT_FALSE(second.await(in(5ms)));
  second.pass();  // it failed before its turn
  EXPECT_FALSE(second.await(in(5ms)));
  EXPECT_FALSE(third.has_come());
  first.pass();
  first.pass();
  EXPECT_FALSE(first.has_come());
  EXPECT_TRUE(third.has_come());
  EXPECT_TRUE(third.await(in(0ms)));
}

TEST(Turns, ThoseThatAreDroppedArePassedOn) {
  Turns turns;
  auto first = std::make_unique<Turn>(turns);
  Turn second(turns);
  std::atomic<bool> came = false;
  std::thread waits([&] { came = second.await(in(10s)); });
  EXPECT_FALSE(came);
  first.reset();
  waits.join();
  EXPECT_TRUE(came);
}

TEST(Turns, OfDevicesAreTheirOwn) {
  Turn one(Turns::of(1)), other(Turns::of(2));
  EXPECT_TRUE(one.has_come());
  EXPECT_TRUE(other.has_come());
  EXPECT_EQ(&Turns::of(1), &Turns::of(1));
}

}  // namespace
}  // namespace torch_tpu::distributed
