// Guards: what a result depends on is the union of what its operands do, and a violation is told
// once by what stayed sound.
#include "csrc/trace/flags.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "csrc/pjrt/client.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::trace {
namespace {

class FlagsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* plugin = std::getenv("TORCH_TPU_TEST_PLUGIN");
    if (plugin == nullptr) GTEST_SKIP() << "TORCH_TPU_TEST_PLUGIN is not set";
    setenv("TORCH_TPU_PLUGIN", plugin, 1);
  }

  FlagsPtr flags(std::vector<int64_t> values) {
    const pjrt::Runtime& runtime = pjrt::Runtime::get();
    const std::vector<int64_t> dims = {static_cast<int64_t>(values.size())};
    std::vector<pjrt::Buffer> buffers;
    buffers.push_back(runtime.client().from_host(
        values.data(), PJRT_Buffer_Type_S64, {dims.data(), dims.size()}, {},
        pjrt::HostSemantics::kOnlyDuringCall, runtime.device(0), {}));
    Flags::Places places;
    for (size_t i = 0; i < values.size(); ++i) places.push_back({&check_});
    return c10::make_intrusive<Flags>(std::move(buffers), std::move(places), Flags::Owner());
  }

  const ops::ValueCheck check_{"index {} is out of range", ops::ValueCheck::Kind::kIndex};
};

constexpr int64_t kFine = ops::kNoViolation;

TEST_F(FlagsTest, EachFlagIsKnownByItself) {
  const FlagsPtr some = flags({kFine, 7, kFine});
  EXPECT_FALSE(some->violated(0));
  EXPECT_EQ(some->value(1), 7);
  EXPECT_FALSE(some->violated(2));
  EXPECT_TRUE(some->known());
  EXPECT_FALSE(some->good());
  EXPECT_TRUE([&] {
    const FlagsPtr all = flags({kFine, kFine});
    static_cast<void>(all->value(0));
    return all->good();
  }());
}

TEST_F(FlagsTest, WhatIsSpoiledRaisesEachTimeWhatIsSoundOnce) {
  const FlagsPtr bad = flags({9});
  const Guard spoiled{bad, 0, true};
  const Guard sound{bad, 0, false};
  EXPECT_TRUE(spoiled.raises());
  EXPECT_TRUE(sound.raises());
  bad->report(0);
  EXPECT_TRUE(spoiled.raises());
  EXPECT_FALSE(sound.raises());
  EXPECT_TRUE(sound.settled());
  EXPECT_FALSE(spoiled.settled());
}

TEST_F(FlagsTest, AUnionLeavesOutWhatIsInOrder) {
  const FlagsPtr good = flags({kFine});
  static_cast<void>(good->value(0));
  const FlagsPtr bad = flags({3});
  GuardUnion first;
  first.add(good, 0, true);
  EXPECT_TRUE(first.empty());
  EXPECT_FALSE(first.take());
  GuardUnion second;
  second.add(bad, 0, false);
  second.add(bad, 0, true);  // the worse of the two
  const GuardsPtr guards = second.take();
  ASSERT_TRUE(guards);
  ASSERT_EQ(guards->all.size(), 1u);
  EXPECT_TRUE(guards->all[0].spoils);
  GuardUnion third;
  third.add(guards);
  third.add(guards);
  EXPECT_EQ(third.take(), guards);  // shared, not copied
  GuardUnion fourth;
  fourth.add_without_spoiling(guards);
  EXPECT_FALSE(fourth.take()->all[0].spoils);
}

}  // namespace
}  // namespace torch_tpu::trace
