#include "csrc/distributed/reduce.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

namespace torch_tpu::distributed {
namespace {

using Kind = c10d::ReduceOp::RedOpType;

TEST(Reduce, RowsInTheOrderOfRanks) {
  const at::Tensor pieces = at::tensor({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}).view({3, 2});
  at::Tensor out = at::tensor({0.0f, 0.0f});
  reduce_pieces(pieces.clone().view(at::kByte), out, Kind::SUM);
  EXPECT_TRUE(at::equal(out, at::tensor({9.0f, 12.0f})));
  reduce_pieces(pieces.clone().view(at::kByte), out, Kind::AVG);
  EXPECT_TRUE(at::equal(out, at::tensor({3.0f, 4.0f})));
  reduce_pieces(pieces.clone().view(at::kByte), out, Kind::MIN);
  EXPECT_TRUE(at::equal(out, at::tensor({1.0f, 2.0f})));
  c10d::ReduceOp doubled;
  doubled.op_ = Kind::PREMUL_SUM;
  doubled.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(2.0);
  reduce_pieces(pieces.clone().view(at::kByte), out, doubled);
  EXPECT_TRUE(at::equal(out, at::tensor({18.0f, 24.0f})));
}

TEST(Reduce, LargeUnsignedNumbersKeepTheirOrder) {
  const at::Tensor bits = at::tensor({int64_t{-1}, int64_t{1}});  // the largest, and one
  at::Tensor host = bits.clone().view(c10::kUInt64);
  Reduction reduction(host, Kind::MAX, 2);
  EXPECT_EQ(reduction.wire().scalar_type(), c10::kLong);
  EXPECT_GT(reduction.wire()[0].item<int64_t>(), reduction.wire()[1].item<int64_t>());
  reduction.finish();
  EXPECT_TRUE(at::equal(host.view(c10::kLong), bits));
}

TEST(Reduce, RefusesWhatHasNoMeaning) {
  EXPECT_THROW(check_reduction(Kind::BAND, c10::kFloat), c10::Error);
  EXPECT_THROW(check_reduction(Kind::MAX, c10::kComplexFloat), c10::Error);
  EXPECT_NO_THROW(check_reduction(Kind::BXOR, c10::kBool));
}

}  // namespace
}  // namespace torch_tpu::distributed
