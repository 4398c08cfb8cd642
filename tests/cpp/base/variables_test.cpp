#include "csrc/base/variables.h"

#include <atomic>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace torch_tpu::base {
namespace {

const char* read(const char* name) { return std::getenv(name); }

TEST(Variables, AreSetAndTakenBack) {
  EXPECT_TRUE(set_variable("TORCH_TPU_TEST_A", "one"));
  EXPECT_STREQ(read("TORCH_TPU_TEST_A"), "one");
  EXPECT_FALSE(set_variable("TORCH_TPU_TEST_A", "two"));
  EXPECT_STREQ(read("TORCH_TPU_TEST_A"), "one");
  EXPECT_TRUE(set_variable("TORCH_TPU_TEST_A_LONGER", "other"));
  unset_variable("TORCH_TPU_TEST_A");
  EXPECT_EQ(read("TORCH_TPU_TEST_A"), nullptr);
  EXPECT_STREQ(read("TORCH_TPU_TEST_A_LONGER"), "other");
  unset_variable("TORCH_TPU_TEST_A_LONGER");
  unset_variable("TORCH_TPU_TEST_A_LONGER");  // twice is once
}

TEST(Variables, LiveWithLibcsOwn) {
  ASSERT_EQ(setenv("TORCH_TPU_TEST_B", "libc", 1), 0);
  EXPECT_FALSE(set_variable("TORCH_TPU_TEST_B", "ours"));
  ASSERT_TRUE(set_variable("TORCH_TPU_TEST_C", "ours"));
  ASSERT_EQ(setenv("TORCH_TPU_TEST_D", "libc", 1), 0);  // after ours: the array is not libc's
  ASSERT_EQ(setenv("TORCH_TPU_TEST_C", "changed", 1), 0);
  EXPECT_STREQ(read("TORCH_TPU_TEST_B"), "libc");
  EXPECT_STREQ(read("TORCH_TPU_TEST_C"), "changed");
  EXPECT_STREQ(read("TORCH_TPU_TEST_D"), "libc");
  for (const char* name : {"TORCH_TPU_TEST_B", "TORCH_TPU_TEST_C", "TORCH_TPU_TEST_D"}) {
    ASSERT_EQ(unsetenv(name), 0);
    EXPECT_EQ(read(name), nullptr);
  }
}

// With setenv and unsetenv a reader now and then misses what was there all the time, or reads
// memory that was freed.
TEST(Variables, OthersReadTheEnvironmentMeanwhile) {
  ASSERT_TRUE(set_variable("TORCH_TPU_TEST_ALWAYS", "here"));
  std::atomic<bool> stop{false};
  std::atomic<int> missed{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        const char* value = read("TORCH_TPU_TEST_ALWAYS");
        if (value == nullptr || std::string_view(value) != "here") ++missed;
      }
    });
  }
  for (int turn = 0; turn < 300; ++turn) {
    const std::string name = "TORCH_TPU_TEST_TURN_" + std::to_string(turn % 7);
    EXPECT_TRUE(set_variable(name, std::string(100, 'x')));
    unset_variable(name);
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(missed, 0);
  unset_variable("TORCH_TPU_TEST_ALWAYS");
}

}  // namespace
}  // namespace torch_tpu::base
