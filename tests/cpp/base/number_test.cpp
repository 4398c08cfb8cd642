#include "csrc/base/number.h"

#include <gtest/gtest.h>

namespace torch_tpu::base {
namespace {

constexpr int64_t kLarge = (int64_t{1} << 53) + 1;  // the first integer no double has
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr uint64_t kUMax = std::numeric_limits<uint64_t>::max();

TEST(Number, KeepsItsKind) {
  EXPECT_EQ(Number(true).kind(), Number::Kind::kBool);
  EXPECT_EQ(Number(7).kind(), Number::Kind::kInt);
  EXPECT_EQ(Number(size_t{7}).kind(), Number::Kind::kInt);
  EXPECT_EQ(Number(kUMax).kind(), Number::Kind::kUInt);
  EXPECT_EQ(Number(7.0).kind(), Number::Kind::kDouble);
  EXPECT_EQ(Number(7.0F).kind(), Number::Kind::kDouble);
}

TEST(Number, KeepsAllBits) {
  for (const int64_t value : {int64_t{0}, int64_t{-1}, kLarge, -kLarge, kMin, kMax}) {
    EXPECT_EQ(Number(value).integer(), value);
  }
  EXPECT_EQ(Number(kUMax).bits(), kUMax);
  EXPECT_EQ(Number(0.1).to_double(), 0.1);
}

TEST(Number, ComparesExactly) {
  EXPECT_EQ(Number(1), Number(1.0));
  EXPECT_EQ(Number(1), Number(true));
  EXPECT_EQ(Number(kMin), Number(-0x1p63));
  EXPECT_EQ(Number(uint64_t{1} << 63), Number(0x1p63));
  EXPECT_EQ(Number(0), Number(-0.0));
  EXPECT_NE(Number(kLarge), Number(0x1p53));
  EXPECT_NE(Number(kLarge), Number(kLarge - 1));
  EXPECT_NE(Number(kMax), Number(0x1p63));
  EXPECT_NE(Number(kUMax), Number(0x1p64));
  EXPECT_NE(Number(kUMax), Number(-1));
  EXPECT_NE(Number(0), Number(0.5));
  EXPECT_NE(Number(0), Number(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_NE(Number(kMax), Number(std::numeric_limits<double>::infinity()));
}

// By way of a double the last bit is lost, and what is left is a tie.
TEST(Number, IsRoundedOnce) {
  const int64_t above_tie = (int64_t{1} << 60) + (int64_t{1} << 36) + 1;
  EXPECT_EQ(Number(above_tie).to_float(), static_cast<float>(above_tie));
  EXPECT_NE(Number(above_tie).to_float(), static_cast<float>(static_cast<double>(above_tie)));
  EXPECT_EQ(Number(kUMax).to_double(), 0x1p64);
}

TEST(Number, IsTruncatedLikeACast) {
  EXPECT_EQ(Number(2.9).truncated(), 2);
  EXPECT_EQ(Number(-2.9).truncated(), -2);
  EXPECT_EQ(Number(kLarge).truncated(), kLarge);
  EXPECT_EQ(Number(1e30).truncated(), kMax);
  EXPECT_EQ(Number(-1e30).truncated(), kMin);
  EXPECT_TRUE(Number(3.0).is_whole());
  EXPECT_FALSE(Number(3.5).is_whole());
  EXPECT_FALSE(Number(std::numeric_limits<double>::infinity()).is_whole());
}

TEST(Number, ReadsBack) {
  EXPECT_EQ(to_string(Number(kLarge)), "9007199254740993");
  EXPECT_EQ(to_string(Number(kMin)), "-9223372036854775808");
  EXPECT_EQ(to_string(Number(kUMax)), "18446744073709551615");
  EXPECT_EQ(to_string(Number(0.1)), "0.1");
  EXPECT_EQ(to_string(Number(true)), "1");
}

}  // namespace
}  // namespace torch_tpu::base
