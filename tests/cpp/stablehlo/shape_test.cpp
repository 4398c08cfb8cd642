// Ops that move or repeat elements.
#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

TEST(ShapeText, Forms) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 3}));
  Value i = b.parameter(Type(DType::kS32, {}));
  Value zero = b.scalar(0, DType::kF32);
  Values all = {b.reshape(x, {6})};
  all.push_back(b.broadcast_to(x, {4, 2, 3}));
  all.push_back(b.transpose(x, {1, 0}));
  all.push_back(b.reverse(x, {0, 1}));
  all.push_back(b.slice(x, {0, 1}, {2, 3}));
  all.push_back(b.slice_dim(x, 1, 0, 3, 2));
  all.push_back(b.pad(x, zero, {0, 1}, {-1, 2}, {0, 1}));
  all.push_back(b.concatenate({x, x}, 1));
  all.push_back(b.dynamic_slice(x, {i, i}, {1, 2}));
  all.push_back(b.dynamic_update_slice(x, all.back(), {i, i}));
  EXPECT_EQ(body(b, all), R"(    %0 = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = stablehlo.reshape %arg0 : (tensor<2x3xf32>) -> tensor<6xf32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [1, 2] : (tensor<2x3xf32>) -> tensor<4x2x3xf32>
    %3 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %4 = "stablehlo.reverse"(%arg0) <{dimensions = array<i64: 0, 1>}> : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %5 = "stablehlo.slice"(%arg0) <{limit_indices = array<i64: 2, 3>, start_indices = array<i64: 0, 1>, strides = array<i64: 1, 1>}> : (tensor<2x3xf32>) -> tensor<2x2xf32>
    %6 = "stablehlo.slice"(%arg0) <{limit_indices = array<i64: 2, 3>, start_indices = array<i64: 0, 0>, strides = array<i64: 1, 2>}> : (tensor<2x3xf32>) -> tensor<2x2xf32>
    %7 = "stablehlo.pad"(%arg0, %0) <{edge_padding_high = array<i64: -1, 2>, edge_padding_low = array<i64: 0, 1>, interior_padding = array<i64: 0, 1>}> : (tensor<2x3xf32>, tensor<f32>) -> tensor<1x8xf32>
    %8 = "stablehlo.concatenate"(%arg0, %arg0) <{dimension = 1 : i64}> : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x6xf32>
    %9 = "stablehlo.dynamic_slice"(%arg0, %arg1, %arg1) <{slice_sizes = array<i64: 1, 2>}> : (tensor<2x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
    %10 = "stablehlo.dynamic_update_slice"(%arg0, %9, %arg1, %arg1) : (tensor<2x3xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
)");
}

TEST(ShapeTypes, NoOpsReturnTheOperand) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 3}));
  EXPECT_EQ(b.reshape(x, {2, 3}).id(), x.id());
  EXPECT_EQ(b.broadcast_to(x, {2, 3}).id(), x.id());
  EXPECT_EQ(b.transpose(x, {0, 1}).id(), x.id());
  EXPECT_EQ(b.slice_dim(x, 1, 0, 3).id(), x.id());
  EXPECT_EQ(b.concatenate({x}, 0).id(), x.id());
  EXPECT_EQ(b.reverse(x, {}).id(), x.id());
  EXPECT_EQ(b.pad(x, b.scalar(0, DType::kF32), {0, 0}, {0, 0}).id(), x.id());
}

TEST(ShapeErrors, NameTheTypes) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 3}));
  Value i = b.parameter(Type(DType::kS32, {}));
  Value f = b.parameter(Type(DType::kF32, {}));
  EXPECT_INVALID(b.reshape(x, {5}),
                 "[reshape] expected as many elements as tensor<2x3xf32>, got [5]");
  EXPECT_INVALID(
      b.broadcast_to(x, {2, 4}),
      "[broadcast_in_dim] expected a shape that broadcasts to [2, 4], got tensor<2x3xf32>");
  EXPECT_INVALID(b.broadcast_to(x, {3}),
                 "[broadcast_to] expected a shape that broadcasts to [3], got tensor<2x3xf32>");
  EXPECT_INVALID(b.broadcast_in_dim(x, {2, 3}, {0, 0}),
                 "[broadcast_in_dim] expected distinct dimensions, got [0, 0]");
  EXPECT_INVALID(b.transpose(x, {0}),
                 "[transpose] expected 2 permutation entries for tensor<2x3xf32>, got 1");
  EXPECT_INVALID(b.transpose(x, {0, 2}), "[transpose] expected a dimension below 2, got 2");
  EXPECT_INVALID(b.slice_dim(x, 1, 2, 4),
                 "[slice] expected 0 <= start <= limit <= 3 and a positive stride, got start 2, "
                 "limit 4, stride 1");
  EXPECT_INVALID(b.pad(x, i, {0, 0}, {0, 1}), "[pad] expected tensor<f32>, got tensor<i32>");
  EXPECT_INVALID(b.pad(x, f, {0, -2}, {0, -2}),
                 "[pad] expected a result of at least 0 elements, got -1");
  EXPECT_INVALID(b.concatenate({}, 0), "[concatenate] expected at least one operand, got none");
  Value t = b.transpose(x, {1, 0});
  EXPECT_INVALID(b.concatenate({x, t}, 0),
                 "[concatenate] expected equal sizes of dimensions 1 and 1, got (tensor<2x3xf32>, "
                 "tensor<3x2xf32>)");
  EXPECT_INVALID(b.dynamic_slice(x, {i}, {1, 1}),
                 "[dynamic_slice] expected 2 start indices, got 1");
  EXPECT_INVALID(b.dynamic_slice(x, {f, f}, {1, 1}),
                 "[dynamic_slice] expected a scalar integer index, got tensor<f32>");
  EXPECT_INVALID(
      b.dynamic_update_slice(x, t, {i, i}),
      "[dynamic_update_slice] expected an update within tensor<2x3xf32>, got tensor<3x2xf32>");
}

using ShapeRun = RunTest;

TEST_F(ShapeRun, Everything) {
  Value x = input(f32_range({2, 3}));
  Value i = input(s32({}, {1}));
  Value nine = b.scalar(9, DType::kF32);
  Value zero = b.like(i, 0);
  std::vector<Array> got =
      run({b.reshape(x, {3, 2}), b.broadcast_to(b.slice_dim(x, 1, 1, 2), {2, 2}),
           b.transpose(x, {1, 0}), b.reverse(x, {1}), b.slice(x, {0, 0}, {2, 3}, {1, 2}),
           b.pad(x, nine, {0, 1}, {-1, 0}, {0, 1}), b.concatenate({x, x}, 0),
           b.dynamic_slice(x, {zero, i}, {2, 2}),
           b.dynamic_update_slice(x, b.splat(7, Type(DType::kF32, {1, 2})), {i, i}),
           b.broadcast_in_dim(b.reshape(b.slice_dim(x, 0, 0, 1), {3}), {3, 2}, {0})});
  expect_near(got[0].as<float>(), {0, 1, 2, 3, 4, 5});
  expect_near(got[1].as<float>(), {1, 1, 4, 4});
  expect_near(got[2].as<float>(), {0, 3, 1, 4, 2, 5});
  expect_near(got[3].as<float>(), {2, 1, 0, 5, 4, 3});
  expect_near(got[4].as<float>(), {0, 2, 3, 5});
  expect_near(got[5].as<float>(), {9, 0, 9, 1, 9, 2});
  expect_near(got[6].as<float>(), {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  expect_near(got[7].as<float>(), {1, 2, 4, 5});
  expect_near(got[8].as<float>(), {0, 1, 2, 3, 7, 7});
  expect_near(got[9].as<float>(), {0, 0, 1, 1, 2, 2});
}

}  // namespace
}  // namespace torch_tpu::stablehlo
