// The digest of files: stable, and different for every small damage.
#include "csrc/base/digest.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace torch_tpu::base {
namespace {

std::string sample(size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes += static_cast<char>(i * 37 + i / 11);
  return bytes;
}

TEST(Digest, IsTheSameInEveryVersion) {
  EXPECT_EQ(digest("").hex(), "b3a5d3554469487609a504e3e266ee77");
  EXPECT_EQ(digest("torch_tpu").hex(), "bc59c8d391d047da89b406411880109e");
  EXPECT_EQ(digest(sample(1000)).hex(), "dd0be36b16552bfcb7a5df8b0d195d97");
}

TEST(Digest, EveryBitCounts) {
  for (const size_t size : {1, 7, 8, 9, 64, 129}) {
    std::string bytes = sample(size);
    const Digest right = digest(bytes);
    for (size_t bit = 0; bit < size * 8; ++bit) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_FALSE(digest(bytes) == right) << size << " bytes, bit " << bit;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    }
    EXPECT_TRUE(digest(bytes) == right);
  }
}

TEST(Digest, LengthCountsAlsoForZeros) {
  std::set<std::string> seen;
  for (size_t size = 0; size < 100; ++size) {
    EXPECT_TRUE(seen.insert(digest(std::string(size, '\0')).hex()).second) << size;
  }
}

TEST(Digest, BothHalvesMix) {
  std::set<uint64_t> high, low;
  for (int i = 0; i < 10000; ++i) {
    const Digest one = digest(std::to_string(i));
    high.insert(one.high);
    low.insert(one.low);
  }
  EXPECT_EQ(high.size(), 10000u);
  EXPECT_EQ(low.size(), 10000u);
}

}  // namespace
}  // namespace torch_tpu::base
