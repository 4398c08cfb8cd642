// Which updates may be written over the array they are computed from.
#include <gtest/gtest.h>

#include "csrc/stablehlo/builder.h"

namespace torch_tpu::stablehlo {
namespace {

class InPlace : public ::testing::Test {
 protected:
  Value part(const Value& from, int64_t start) {
    return b.slice(b.reshape(from, {32}), {start}, {start + 8});
  }

  Builder b;
  const Value x = b.parameter(Type(DType::kF32, {4, 8}));
  const Value other = b.parameter(Type(DType::kF32, {4, 8}));
  const Value row = b.parameter(Type(DType::kF32, {8}));
};

TEST_F(InPlace, AnUpdateFromElsewhereMustNot) {
  EXPECT_TRUE(b.reads_elsewhere(part(x, 8), x, {}));
  EXPECT_TRUE(b.reads_elsewhere(b.add(row, part(x, 8)), x, {}));
  const Value sum = b.reduce(x, b.scalar(0, DType::kF32), {0}, Reduction::kAdd);
  EXPECT_TRUE(b.reads_elsewhere(sum, x, {}));
  EXPECT_FALSE(b.reads_elsewhere(part(other, 8), x, {}));
  EXPECT_FALSE(b.reads_elsewhere(row, x, part(x, 8)));
}

TEST_F(InPlace, WhatIsReadWhereItIsWrittenMayIfElementByElement) {
  const Value own = part(x, 8);
  EXPECT_FALSE(b.reads_elsewhere(b.exponential(own) + row, x, own));
  EXPECT_FALSE(b.reads_elsewhere(b.select(b.lt(own, row), own, row), x, own));
  EXPECT_TRUE(b.reads_elsewhere(b.reverse(own, {0}), x, own));
  EXPECT_TRUE(b.reads_elsewhere(own + b.reverse(own, {0}), x, own));
  EXPECT_TRUE(b.reads_elsewhere(own + part(x, 16), x, own));
}

TEST_F(InPlace, TheBaseMayBeSimplified) {
  EXPECT_TRUE(b.reads_elsewhere(part(x, 8), b.negate(b.negate(x)), {}));
  EXPECT_TRUE(b.reads_elsewhere(part(x, 8), b.reshape(x, {2, 16}), {}));
}

TEST_F(InPlace, WhatWasWrittenIsAnotherArray) {
  const Value zero = b.scalar(0, DType::kS32);
  const Value written = b.dynamic_update_slice(x, b.reshape(row, {1, 8}), {zero, zero});
  EXPECT_FALSE(b.reads_elsewhere(part(x, 8), written, {}));
  EXPECT_TRUE(b.reads_elsewhere(part(written, 8), written, {}));
}

TEST_F(InPlace, RegionsUseValuesFromOutside) {
  const Value pred = b.parameter(Type(DType::kBool, {}));
  const auto branch = [&](const Value& of) {
    return [this, of](const Values&) { return Values{part(of, 8)}; };
  };
  EXPECT_TRUE(b.reads_elsewhere(b.if_else(pred, branch(other), branch(x))[0], x, {}));
  EXPECT_FALSE(b.reads_elsewhere(b.if_else(pred, branch(other), branch(other))[0], x, {}));
}

}  // namespace
}  // namespace torch_tpu::stablehlo
