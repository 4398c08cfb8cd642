// Reductions and windows.
#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

// (value, index) of the largest element, the first one on ties.
Region argmax(Builder& b) {
  return [&b](const Values& v) -> Values {
    Value greater = b.gt(v[2], v[0]);
    Value tie = b.and_(b.eq(v[2], v[0]), b.lt(v[3], v[1]));
    Value take = b.or_(greater, tie);
    return {b.select(take, v[2], v[0]), b.select(take, v[3], v[1])};
  };
}

TEST(ReduceText, Forms) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 3}));
  Value zero = b.parameter(Type(DType::kF32, {}));
  Window w;
  w.sizes = {1, 2};
  w.strides = {1, 1};
  w.padding_low = {0, 1};
  w.padding_high = {0, 0};
  Value sum = b.reduce(x, zero, {1}, Reduction::kAdd);
  Value pooled = b.reduce_window(x, zero, w, Reduction::kMax);
  Value back = b.select_and_scatter(x, pooled, zero, w, Compare::kGe, Reduction::kAdd);
  EXPECT_EQ(body(b, {sum, pooled, back}),
            R"(    %0 = "stablehlo.reduce"(%arg0, %arg1) <{dimensions = array<i64: 1>}> ({
    ^bb0(%1: tensor<f32>, %2: tensor<f32>):
      %3 = stablehlo.add %1, %2 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    %4 = "stablehlo.reduce_window"(%arg0, %arg1) <{base_dilations = array<i64: 1, 1>, padding = dense<[[0, 0], [1, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%5: tensor<f32>, %6: tensor<f32>):
      %7 = stablehlo.maximum %5, %6 : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
    %8 = "stablehlo.select_and_scatter"(%arg0, %4, %arg1) <{padding = dense<[[0, 0], [1, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%9: tensor<f32>, %10: tensor<f32>):
      %11 = stablehlo.compare GE, %9, %10, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %11 : tensor<i1>
    }, {
    ^bb0(%12: tensor<f32>, %13: tensor<f32>):
      %14 = stablehlo.add %12, %13 : tensor<f32>
      stablehlo.return %14 : tensor<f32>
    }) : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
)");
}

TEST(ReduceTypes, NoDimensionsIsNoOp) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 3}));
  EXPECT_EQ(b.reduce(x, b.scalar(0, DType::kF32), {}, Reduction::kAdd).id(), x.id());
}

TEST(ReduceErrors, NameTheTypes) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 3}));
  Value zero = b.scalar(0, DType::kF32);
  EXPECT_INVALID(b.reduce(x, b.scalar(0, DType::kS32), {0}, Reduction::kAdd),
                 "[reduce] expected tensor<f32>, got tensor<i32>");
  EXPECT_INVALID(b.reduce(x, zero, {2}, Reduction::kAdd),
                 "[reduce] expected a dimension below 2, got 2");
  EXPECT_INVALID(b.reduce(x, zero, {0, 0}, Reduction::kAdd),
                 "[reduce] expected distinct dimensions, got [0, 0]");
  EXPECT_INVALID(b.reduce(x, zero, {0}, Reduction::kAnd),
                 "[and] expected bool or integer, got tensor<f32>");
  EXPECT_INVALID(b.reduce(Values{x}, Values{zero}, {0},
                          [&](const Values& v) -> Values { return {b.lt(v[0], v[1])}; }),
                 "[reduce] expected a body that returns (tensor<f32>), got (tensor<i1>)");
  Window w;
  w.sizes = {2};
  EXPECT_INVALID(b.reduce_window(x, zero, w, Reduction::kAdd),
                 "[reduce_window] expected 2 window entries for tensor<2x3xf32>, got 1");
  w.sizes = {1, 2};
  EXPECT_INVALID(
      b.select_and_scatter(x, x, zero, w, Compare::kGe, Reduction::kAdd),
      "[select_and_scatter] expected a source of type tensor<2x2xf32>, got tensor<2x3xf32>");
}

// XLA has no captures in these regions: constants are copied in, anything else is refused.
TEST(ReduceErrors, Captures) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {3}));
  Value scale = b.parameter(Type(DType::kF32, {}));
  Value zero = b.scalar(0, DType::kF32);
  EXPECT_INVALID(b.reduce(Values{x}, Values{zero}, {0},
                          [&](const Values& v) -> Values { return {v[0] + v[1] * scale}; }),
                 "[multiply] expected a region that only uses its arguments and constants, got a "
                 "captured tensor<f32>");
}

using ReduceRun = RunTest;

TEST_F(ReduceRun, Kinds) {
  Value x = input(f32({2, 3}, {1, 5, 3, -2, 4, 6}));
  Value i = input(s32({4}, {6, 3, 12, 7}));
  Value p = b.gt(x, b.like(x, 2));
  std::vector<Array> got = run({b.reduce(x, b.scalar(0, DType::kF32), {1}, Reduction::kAdd),
                                b.reduce(x, b.scalar(1, DType::kF32), {0}, Reduction::kMul),
                                b.reduce(x, b.lowest(DType::kF32), {0, 1}, Reduction::kMax),
                                b.reduce(x, b.highest(DType::kF32), {1}, Reduction::kMin),
                                b.reduce(i, b.scalar(-1, DType::kS32), {0}, Reduction::kAnd),
                                b.reduce(i, b.scalar(0, DType::kS32), {0}, Reduction::kOr),
                                b.reduce(i, b.scalar(0, DType::kS32), {0}, Reduction::kXor),
                                b.reduce(p, b.scalar(1, DType::kBool), {1}, Reduction::kAnd),
                                b.reduce(p, b.scalar(0, DType::kBool), {1}, Reduction::kOr)});
  expect_near(got[0].as<float>(), {9, 8});
  expect_near(got[1].as<float>(), {-2, 20, 18});
  expect_near(got[2].as<float>(), {6});
  expect_near(got[3].as<float>(), {1, -2});
  EXPECT_EQ(got[4].as<int32_t>()[0], 6 & 3 & 12 & 7);
  EXPECT_EQ(got[5].as<int32_t>()[0], 15);
  EXPECT_EQ(got[6].as<int32_t>()[0], 6 ^ 3 ^ 12 ^ 7);
  EXPECT_EQ(got[7].bytes, (std::vector<char>{0, 0}));
  EXPECT_EQ(got[8].bytes, (std::vector<char>{1, 1}));
}

TEST_F(ReduceRun, SeveralOperandsAndCapturedConstants) {
  Value x = input(f32({2, 3}, {1, 5, 5, 7, 4, 6}));
  Value index = b.iota(Type(DType::kS32, {2, 3}), 1);
  Values best =
      b.reduce({x, index}, {b.lowest(DType::kF32), b.highest(DType::kS32)}, {1}, argmax(b));
  Value half = b.scalar(0.5, DType::kF32);
  Value scaled =
      b.reduce(Values{x}, Values{b.scalar(0, DType::kF32)}, {1},
               [&](const Values& v) -> Values { return {v[0] + v[1] * half + half - half}; })[0];
  std::vector<Array> got = run({best[0], best[1], scaled});
  expect_near(got[0].as<float>(), {5, 7});
  EXPECT_EQ(got[1].as<int32_t>(), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(got[2].as<float>().size(),
            2u);  // not a proper reduction: only that it compiles and runs
}

TEST_F(ReduceRun, Windows) {
  Value x = input(f32_range({1, 4}));
  Value zero = b.scalar(0, DType::kF32);
  Window pool;
  pool.sizes = {1, 2};
  pool.strides = {1, 2};
  Window cumsum;
  cumsum.sizes = {1, 4};
  cumsum.padding_low = {0, 3};
  Window dilated;
  dilated.sizes = {1, 2};
  dilated.base_dilation = {1, 2};
  dilated.window_dilation = {1, 2};
  Value index = b.iota(Type(DType::kS32, {1, 4}), 1);
  Values best =
      b.reduce_window({x, index}, {b.lowest(DType::kF32), b.highest(DType::kS32)}, pool, argmax(b));
  std::vector<Array> got =
      run({b.reduce_window(x, b.lowest(DType::kF32), pool, Reduction::kMax),
           b.reduce_window(x, zero, cumsum, Reduction::kAdd),
           b.reduce_window(x, zero, dilated, Reduction::kAdd), best[0], best[1]});
  expect_near(got[0].as<float>(), {1, 3});
  expect_near(got[1].as<float>(), {0, 1, 3, 6});
  expect_near(got[2].as<float>(), {1, 0, 3, 0, 5});
  expect_near(got[3].as<float>(), {1, 3});
  EXPECT_EQ(got[4].as<int32_t>(), (std::vector<int32_t>{1, 3}));
}

// Four dimensions: the TPU compiler wants the two minor-most ones without a window.
TEST_F(ReduceRun, SelectAndScatter) {
  Value x = input(f32_range({1, 1, 2, 4}));
  Value gradient = input(f32({1, 1, 1, 2}, {10, 20}));
  Window pool;
  pool.sizes = {1, 1, 2, 2};
  pool.strides = {1, 1, 2, 2};
  Value zero = b.scalar(0, DType::kF32);
  expect_near(run_f32(b.select_and_scatter(x, gradient, zero, pool, Compare::kGe, Reduction::kAdd)),
              {0, 0, 0, 0, 0, 10, 0, 20});
}

}  // namespace
}  // namespace torch_tpu::stablehlo
