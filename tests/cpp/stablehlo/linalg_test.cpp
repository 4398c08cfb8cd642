// Fourier transforms, factorisations and random bits.
#include <set>

#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

using C = std::complex<float>;

TEST(LinalgText, Forms) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 4}));
  Value a = b.parameter(Type(DType::kF32, {4, 4}));
  Value state = b.parameter(Type(DType::kU64, {2}));
  Value f = b.fft(x, FftType::kRfft, {4});
  Value c = b.cholesky(a, true);
  Value t = b.triangular_solve(a, x, false, true, false, true);
  Values r = b.rng_bit_generator(state, Type(DType::kU32, {3}), RngAlgorithm::kPhilox);
  EXPECT_EQ(
      body(b, {f, c, t, r[0], r[1]}),
      R"(    %0 = "stablehlo.fft"(%arg0) <{fft_length = array<i64: 4>, fft_type = #stablehlo<fft_type RFFT>}> : (tensor<2x4xf32>) -> tensor<2x3xcomplex<f32>>
    %1 = "stablehlo.cholesky"(%arg1) <{lower = true}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = "stablehlo.triangular_solve"(%arg1, %arg0) <{left_side = false, lower = true, transpose_a = #stablehlo<transpose TRANSPOSE>, unit_diagonal = false}> : (tensor<4x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %3:2 = "stablehlo.rng_bit_generator"(%arg2) <{rng_algorithm = #stablehlo<rng_algorithm PHILOX>}> : (tensor<2xui64>) -> (tensor<2xui64>, tensor<3xui32>)
)");
}

TEST(LinalgErrors, NameTheTypes) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 4}));
  Value c = b.parameter(Type(DType::kC64, {2, 4}));
  EXPECT_INVALID(b.fft(x, FftType::kFft, {4}),
                 "[fft] expected a complex operand, got tensor<2x4xf32>");
  EXPECT_INVALID(b.fft(c, FftType::kRfft, {4}),
                 "[fft] expected a real operand, got tensor<2x4xcomplex<f32>>");
  EXPECT_INVALID(b.fft(c, FftType::kIrfft, {4}),
                 "[fft] expected dimension 1 of size 3, got tensor<2x4xcomplex<f32>>");
  EXPECT_INVALID(b.fft(c, FftType::kFft, {}),
                 "[fft] expected 1 to 3 lengths for tensor<2x4xcomplex<f32>>, got []");
  EXPECT_INVALID(b.cholesky(x, true), "[cholesky] expected square matrices, got tensor<2x4xf32>");
  EXPECT_INVALID(b.cholesky(b.convert(x, DType::kBF16), true),
                 "[cholesky] expected f32, f64 or complex, got tensor<2x4xbf16>");
  Value a = b.parameter(Type(DType::kF32, {4, 4}));
  EXPECT_INVALID(
      b.triangular_solve(a, x, true, true, false, false),
      "[triangular_solve] expected matrices that fit, got (tensor<4x4xf32>, tensor<2x4xf32>)");
  EXPECT_INVALID(b.rng_bit_generator(x, Type(DType::kU32, {3}), RngAlgorithm::kPhilox),
                 "[rng_bit_generator] expected a tensor<2xui64> state, got tensor<2x4xf32>");
  Value state = b.parameter(Type(DType::kU64, {2}));
  EXPECT_INVALID(b.rng_bit_generator(state, Type(DType::kF32, {3}), RngAlgorithm::kPhilox),
                 "[rng_bit_generator] expected a static integer type, got tensor<3xf32>");
}

using LinalgRun = RunTest;

TEST_F(LinalgRun, Fft) {
  Value x = input(f32({4}, {1, 2, 3, 4}));
  Value f = b.fft(b.convert(x, DType::kC64), FftType::kFft, {4});
  Value half = b.fft(x, FftType::kRfft, {4});
  Value grid = b.reshape(f, {2, 2});
  std::vector<Array> got =
      run({f, b.fft(f, FftType::kIfft, {4}), half, b.fft(half, FftType::kIrfft, {4}),
           b.fft(b.fft(grid, FftType::kFft, {2, 2}), FftType::kIfft, {2, 2})});
  std::vector<C> spectrum = {C(10, 0), C(-2, 2), C(-2, 0), C(-2, -2)};
  for (int i = 0; i < 4; ++i) {
    EXPECT_LT(std::abs(got[0].as<C>()[i] - spectrum[i]), 1e-5f);
    EXPECT_LT(std::abs(got[1].as<C>()[i] - C(static_cast<float>(i + 1))), 1e-5f);
    EXPECT_LT(std::abs(got[4].as<C>()[i] - spectrum[i]), 1e-5f);
  }
  EXPECT_LT(std::abs(got[2].as<C>()[2] - C(-2, 0)), 1e-5f);
  expect_near(got[3].as<float>(), {1, 2, 3, 4});
}

TEST_F(LinalgRun, CholeskyAndTriangularSolve) {
  Value a = input(f32({2, 2}, {4, 2, 2, 5}));
  Value rhs = input(f32({2, 1}, {8, 9}));
  Value l = b.cholesky(a, true);
  Value l0 =
      b.select(b.ge(b.iota(Type(DType::kS32, {2, 2}), 0), b.iota(Type(DType::kS32, {2, 2}), 1)), l,
               b.like(l, 0));
  Value y = b.triangular_solve(l, rhs, true, true, false, false);
  Value x = b.triangular_solve(l, y, true, true, false, true);
  Value right = b.triangular_solve(l, b.reshape(rhs, {1, 2}), false, true, false, true);
  Value imag = b.complex(b.like(a, 0), a);
  Value c = b.convert(rhs, DType::kC64);
  std::vector<Array> got =
      run({l0, x, right, b.triangular_solve(imag, c, true, true, false, false, true),
           b.triangular_solve(imag, c, true, false, false, true, true)});
  expect_near(got[0].as<float>(), {2, 0, 1, 2});
  expect_near(got[1].as<float>(), {22.f / 16, 5.f / 4});
  expect_near(got[2].as<float>(), {4, 2.5f});
  // conj(i L) z = rhs, so z = i L^-1 rhs; L is the lower triangle of a: z = i (2, 1).
  EXPECT_LT(std::abs(got[3].as<C>()[0] - C(0, 2)), 1e-5f);
  EXPECT_LT(std::abs(got[3].as<C>()[1] - C(0, 1)), 1e-5f);
  // The adjoint of i U, where U^T is the same lower triangle.
  EXPECT_LT(std::abs(got[4].as<C>()[0] - C(0, 2)), 1e-5f);
  EXPECT_LT(std::abs(got[4].as<C>()[1] - C(0, 1)), 1e-5f);
}

TEST_F(LinalgRun, RandomBits) {
  Value state = input(array<uint64_t>(DType::kU64, {2}, {42, 7}));
  Value wide = input(array<uint64_t>(DType::kU64, {3}, {42, 7, 0}));
  Values all;
  for (RngAlgorithm algorithm :
       {RngAlgorithm::kPhilox, RngAlgorithm::kThreeFry, RngAlgorithm::kDefault}) {
    Values r = b.rng_bit_generator(state, Type(DType::kU32, {64}), algorithm);
    all.insert(all.end(), r.begin(), r.end());
  }
  Values again = b.rng_bit_generator(state, Type(DType::kU32, {64}), RngAlgorithm::kPhilox);
  Values longer = b.rng_bit_generator(wide, Type(DType::kU64, {4}), RngAlgorithm::kPhilox);
  Values bytes = b.rng_bit_generator(state, Type(DType::kU8, {16}), RngAlgorithm::kPhilox);
  Values next = b.rng_bit_generator(all[0], Type(DType::kU16, {16}), RngAlgorithm::kPhilox);
  all.insert(all.end(), {again[1], longer[0], longer[1], bytes[1], next[1]});
  std::vector<Array> got = run(all);
  for (size_t i : {1, 3, 5}) {
    std::vector<uint32_t> bits = got[i].as<uint32_t>();
    EXPECT_GT(std::set<uint32_t>(bits.begin(), bits.end()).size(), 60u) << i;
    EXPECT_NE(got[i - 1].as<uint64_t>(), (std::vector<uint64_t>{42, 7})) << "state " << i;
  }
  EXPECT_EQ(got[6].bytes, got[1].bytes);
}

}  // namespace
}  // namespace torch_tpu::stablehlo
