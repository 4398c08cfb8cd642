#include "csrc/distributed/key_values.h"

#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace torch_tpu::distributed {
namespace {

TEST(KeyValues, PassesValuesBetweenThreads) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  KeyValues ours(store), theirs(store);
  EXPECT_EQ(ours.try_get("address"), std::nullopt);
  std::thread writer([&] { theirs.put("address", std::string("a\0b", 3)); });
  EXPECT_EQ(ours.get("address", 5000), std::string("a\0b", 3));
  writer.join();
  EXPECT_EQ(ours.try_get("address"), std::string("a\0b", 3));
}

TEST(KeyValues, GivesUpInTime) {
  KeyValues values(c10::make_intrusive<c10d::HashStore>());
  try {
    values.get("nothing", 20);
    FAIL() << "no error";
  } catch (const pjrt::Error& error) {
    EXPECT_EQ(error.code(), PJRT_Error_Code_DEADLINE_EXCEEDED);
  }
}

}  // namespace
}  // namespace torch_tpu::distributed
