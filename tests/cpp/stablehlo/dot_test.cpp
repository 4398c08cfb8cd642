// Matrix products and convolutions.
#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

const ConvDims kNchw{0, 1, {2, 3}, 0, 1, {2, 3}, 0, 1, {2, 3}};
const ConvDims kNcw{0, 1, {2}, 0, 1, {2}, 0, 1, {2}};

TEST(DotText, Forms) {
  Builder b;
  Value x = b.parameter(Type(DType::kBF16, {2, 3, 4}));
  Value y = b.parameter(Type(DType::kBF16, {2, 4, 5}));
  Value image = b.parameter(Type(DType::kF32, {1, 4, 8, 8}));
  Value kernel = b.parameter(Type(DType::kF32, {6, 2, 3, 3}));
  Window w;
  w.strides = {2, 2};
  w.padding_low = {1, 1};
  w.padding_high = {1, 1};
  Value dot = b.dot_general(x, y, {{0}, {0}, {2}, {1}}, DType::kF32);
  Value conv = b.convolution(image, kernel, w, kNchw, 2, 1, DType::kF32, Precision::kHighest);
  EXPECT_EQ(
      body(b, {dot, conv}),
      R"(    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x3x4xbf16>, tensor<2x4x5xbf16>) -> tensor<2x3x5xf32>
    %1 = "stablehlo.convolution"(%arg2, %arg3) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]>, feature_group_count = 2 : i64, lhs_dilation = array<i64: 1, 1>, padding = dense<[[1, 1], [1, 1]]> : tensor<2x2xi64>, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>], rhs_dilation = array<i64: 1, 1>, window_reversal = array<i1: false, false>, window_strides = array<i64: 2, 2>}> : (tensor<1x4x8x8xf32>, tensor<6x2x3x3xf32>) -> tensor<1x6x4x4xf32>
)");
}

TEST(DotErrors, NameTheTypes) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 3}));
  Value y = b.parameter(Type(DType::kF32, {4, 5}));
  Value i = b.parameter(Type(DType::kS32, {3, 5}));
  EXPECT_INVALID(b.dot_general(x, y, {{}, {}, {1}, {0}}, DType::kF32),
                 "[dot_general] expected equal sizes of dimensions 1 and 0, got (tensor<2x3xf32>, "
                 "tensor<4x5xf32>)");
  EXPECT_INVALID(b.dot_general(x, i, {{}, {}, {1}, {0}}, DType::kF32),
                 "[dot_general] expected operands of one dtype and a result of their kind, "
                 "got (tensor<2x3xf32>, tensor<3x5xi32>) -> f32");
  EXPECT_INVALID(b.dot_general(x, y, {{}, {}, {1, 0}, {0}}, DType::kF32),
                 "[dot_general] expected 2 rhs contracting dimensions, got 1");
  EXPECT_INVALID(b.dot_general(x, y, {{1}, {0}, {1}, {1}}, DType::kF32),
                 "[dot_general] expected distinct dimensions, got [1, 1]");
  Value image = b.parameter(Type(DType::kF32, {1, 4, 8, 8}));
  Value kernel = b.parameter(Type(DType::kF32, {6, 3, 3, 3}));
  EXPECT_INVALID(b.convolution(image, kernel, {}, kNchw, 1, 1, DType::kF32),
                 "[convolution] expected features and groups (1, 1) that match, "
                 "got (tensor<1x4x8x8xf32>, tensor<6x3x3x3xf32>)");
  EXPECT_INVALID(b.convolution(image, x, {}, kNchw, 1, 1, DType::kF32),
                 "[convolution] expected operands of one rank of at least 2, "
                 "got (tensor<1x4x8x8xf32>, tensor<2x3xf32>)");
  Window w;
  w.strides = {1};
  EXPECT_INVALID(b.convolution(image, b.parameter(Type(DType::kF32, {6, 4, 3, 3})), w, kNchw, 1, 1,
                               DType::kF32),
                 "[convolution] expected 2 window entries, got 1");
}

using DotRun = RunTest;

TEST_F(DotRun, DotGeneral) {
  Value x = input(f32({2, 3}, {1, 2, 3, 4, 5, 6}));
  Value y = input(f32({3, 2}, {1, 0, 0, 1, 1, 1}));
  Value batched = b.reshape(x, {2, 1, 3});
  Value half = b.convert(x, DType::kBF16);
  Value i = b.convert(x, DType::kS32);
  Value c = b.convert(x, DType::kC64);
  Value f8 = b.convert(x, DType::kF8E4M3FN);
  std::vector<Array> got =
      run({b.dot_general(x, y, {{}, {}, {1}, {0}}, DType::kF32, Precision::kHighest),
           b.dot_general(batched, batched, {{0}, {0}, {2}, {2}}, DType::kF32),
           b.dot_general(half, half, {{}, {}, {1}, {1}}, DType::kF32),
           b.dot_general(i, i, {{}, {}, {1}, {1}}, DType::kS32),
           b.real(b.dot_general(c, c, {{}, {}, {0, 1}, {0, 1}}, DType::kC64)),
           b.dot_general(f8, f8, {{}, {}, {1}, {1}}, DType::kF32),
           b.dot_general(b.slice_dim(x, 1, 0, 1), b.slice_dim(y, 1, 0, 1), {}, DType::kF32)});
  expect_near(got[0].as<float>(), {4, 5, 10, 11});
  expect_near(got[1].as<float>(), {14, 77});
  expect_near(got[2].as<float>(), {14, 32, 32, 77});
  EXPECT_EQ(got[3].as<int32_t>(), (std::vector<int32_t>{14, 32, 32, 77}));
  expect_near(got[4].as<float>(), {91});
  expect_near(got[5].as<float>(), {14, 32, 32, 77});
  EXPECT_EQ(got[6].type.dims, (Dims{2, 1, 3, 1}));
  expect_near(got[6].as<float>(), {1, 0, 1, 4, 0, 4});
}

TEST_F(DotRun, WideningIntegers) {
  // XLA:CUDA of jax-cuda13-pjrt 0.11.2 returns twice the product for small s8 x s8 -> s32.
  if (Runner::get()->platform() == "cuda") GTEST_SKIP() << "wrong on XLA:CUDA";
  Value x = b.convert(input(f32({2, 3}, {1, 2, 3, 4, 5, 6})), DType::kS8);
  EXPECT_EQ(run_s32(b.dot_general(x, x, {{}, {}, {1}, {1}}, DType::kS32)),
            (std::vector<int32_t>{14, 32, 32, 77}));
}

TEST_F(DotRun, Convolutions) {
  Value x = input(f32_range({1, 2, 4}));
  Value k = input(f32({2, 2, 2}, {1, 0, 0, 1, 1, 1, 1, 1}));
  Value depthwise = input(f32({2, 1, 2}, {1, 1, 1, -1}));
  Window plain;
  Window same;
  same.padding_low = {1};
  same.strides = {2};
  Window transposed;  // the gradient of a stride of 2
  transposed.base_dilation = {2};
  transposed.padding_low = {1};
  transposed.padding_high = {1};
  transposed.reversal = {true};
  Window dilated;
  dilated.window_dilation = {3};
  Value batch = b.reshape(x, {2, 1, 4});
  std::vector<Array> got = run({b.convolution(x, k, plain, kNcw, 1, 1, DType::kF32),
                                b.convolution(x, depthwise, same, kNcw, 2, 1, DType::kF32),
                                b.convolution(x, depthwise, transposed, kNcw, 2, 1, DType::kF32),
                                b.convolution(x, k, dilated, kNcw, 1, 1, DType::kF32),
                                b.convolution(batch, depthwise, plain, kNcw, 1, 2, DType::kF32)});
  expect_near(got[0].as<float>(), {5, 7, 9, 10, 14, 18});
  expect_near(got[1].as<float>(), {0, 3, -4, -1});
  expect_near(got[2].as<float>(), {0, 0, 1, 1, 2, 2, 3, 3, 4, -4, 5, -5, 6, -6, 7, -7});
  expect_near(got[3].as<float>(), {7, 14});
  expect_near(got[4].as<float>(), {1, 3, 5, -1, -1, -1});
}

}  // namespace
}  // namespace torch_tpu::stablehlo
