// Quality of the in-memory hash on the kind of words keys are made of.
#include "csrc/base/hash.h"

#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace torch_tpu::base {
namespace {

TEST(Hash, LengthOrderAndSeedMatter) {
  const std::vector<uint64_t> zeros(8, 0);
  std::set<uint64_t> seen;
  for (size_t n = 0; n <= zeros.size(); ++n) seen.insert(hash_words(zeros.data(), n));
  EXPECT_EQ(seen.size(), zeros.size() + 1);

  const uint64_t ab[] = {1, 2};
  const uint64_t ba[] = {2, 1};
  EXPECT_NE(hash_words(ab), hash_words(ba));
  EXPECT_NE(hash_words(ab), hash_words(ab, 1));
  EXPECT_EQ(hash_words(ab), hash_words(ab));
  EXPECT_NE(hash_combine(1, 2), hash_combine(2, 1));
}

// Small numbers (dimensions, dtypes, op ids) are what keys are made of.
TEST(Hash, NoCollisionsOnSmallWords) {
  std::set<uint64_t> seen;
  for (uint64_t a = 0; a < 40; ++a) {
    for (uint64_t b = 0; b < 40; ++b) {
      for (uint64_t c = 0; c < 40; ++c) {
        const uint64_t words[] = {a, b, c};
        seen.insert(hash_words(words));
      }
    }
  }
  EXPECT_EQ(seen.size(), 40u * 40u * 40u);
}

TEST(Hash, OneBitChangesAboutHalf) {
  const std::vector<uint64_t> base = {3, 128, 768, 0, 7};
  const uint64_t reference = hash_words(base);
  int total = 0;
  int count = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    for (int bit = 0; bit < 64; ++bit) {
      std::vector<uint64_t> changed = base;
      changed[i] ^= uint64_t{1} << bit;
      const int distance = std::popcount(reference ^ hash_words(changed));
      EXPECT_GT(distance, 8) << i << " " << bit;
      total += distance;
      ++count;
    }
  }
  EXPECT_NEAR(static_cast<double>(total) / count, 32.0, 3.0);
}

TEST(Hash, LowBitsSpreadOverBuckets) {
  std::vector<int> buckets(256);
  for (uint64_t i = 0; i < 25600; ++i) {
    const uint64_t words[] = {i, 4};
    ++buckets[hash_words(words) & 255];
  }
  for (const int n : buckets) {
    EXPECT_GT(n, 50);
    EXPECT_LT(n, 160);
  }
}

TEST(Hash, Bytes) {
  EXPECT_EQ(hash_bytes("aten::add"), hash_bytes(std::string("aten::add")));
  EXPECT_NE(hash_bytes("a"), hash_bytes(std::string("a\0", 2)));
  EXPECT_NE(hash_bytes("12345678"), hash_bytes("123456789"));
  static_assert(hash_bytes("constexpr") != 0);
}

}  // namespace
}  // namespace torch_tpu::base
