#include "csrc/stablehlo/type.h"

#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

TEST(Type, Spelling) {
  EXPECT_EQ(Type(DType::kF32, {}).str(), "tensor<f32>");
  EXPECT_EQ(Type(DType::kBool, {2, 3}).str(), "tensor<2x3xi1>");
  EXPECT_EQ(Type(DType::kC128, {0}).str(), "tensor<0xcomplex<f64>>");
  EXPECT_EQ(Type(DType::kF8E4M3FN, {1}).str(), "tensor<1xf8E4M3FN>");
  Type varying(DType::kF32, {128, 16});
  varying.axes = {0, kWhole};
  EXPECT_EQ(varying.str(), "tensor<<=128x16xf32>");
}

TEST(Type, Facts) {
  EXPECT_EQ(dtype_name(DType::kU64), "ui64");
  EXPECT_EQ(dtype_name(DType::kF8E5M2), "f8E5M2");
  EXPECT_EQ(dtype_name(DType::kC64), "complex<f32>");
  EXPECT_EQ(dtype_bytes(DType::kC128), 16);
  EXPECT_EQ(dtype_bytes(DType::kBool), 1);
  EXPECT_TRUE(is_float(DType::kF8E4M3FN) && is_float(DType::kF64) && !is_float(DType::kC64));
  EXPECT_TRUE(is_integer(DType::kU8) && is_integer(DType::kS64) && !is_integer(DType::kBool));
  EXPECT_TRUE(is_unsigned(DType::kBool) && is_unsigned(DType::kU64) && !is_unsigned(DType::kS8));
  EXPECT_TRUE(is_signed_integer(DType::kS8) && !is_signed_integer(DType::kU8));
  EXPECT_EQ(real_of(DType::kC64), DType::kF32);
  EXPECT_EQ(real_of(DType::kS8), DType::kS8);
  EXPECT_EQ(complex_of(DType::kF64), DType::kC128);
  EXPECT_INVALID(complex_of(DType::kS8), "[complex_of] expected f32 or f64, got i8");
}

TEST(Type, CountsElements) {
  EXPECT_EQ(Type(DType::kF32, {2, 0, 3}).numel(), 0);
  EXPECT_EQ(Type(DType::kF32, {}).numel(), 1);
}

TEST(Value, Dimensions) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 3}));
  EXPECT_EQ(x.dim(-1), 3);
  EXPECT_EQ(x.dim(0), 2);
  EXPECT_INVALID(x.dim(2), "[dim] expected a dimension of tensor<2x3xf32>, got 2");
  EXPECT_INVALID(Value().type(), "[value] expected a value, got an undefined one");
}

TEST(Value, TypesStayWhereTheyAre) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 3}));
  const Dims& dims = x.dims();  // held across many appends
  Value y = x;
  for (int i = 0; i < 1000; ++i) y = y + x;
  EXPECT_EQ(&dims, &x.dims());
  EXPECT_EQ(dims, (Dims{2, 3}));
}

}  // namespace
}  // namespace torch_tpu::stablehlo
