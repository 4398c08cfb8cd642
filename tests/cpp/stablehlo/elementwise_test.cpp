// Elementwise ops: stablehlo, chlo and conversions.
#include <cmath>
#include <functional>
#include <limits>

#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(ElementwiseText, PrintsTheCompactForms) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 3}));
  Value y = b.parameter(Type(DType::kF32, {2, 3}));
  Value less = b.lt(x, y);
  Value bent = b.tanh(x);
  Value more = x + 1.0;
  Value z = b.select(less, bent, more);
  EXPECT_EQ(
      body(b, {z, b.convert(z, DType::kBF16), b.erf(x)}),
      R"(    %0 = stablehlo.compare LT, %arg0, %arg1, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %1 = stablehlo.tanh %arg0 : tensor<2x3xf32>
    %2 = stablehlo.constant dense<1.0> : tensor<2x3xf32>
    %3 = stablehlo.add %arg0, %2 : tensor<2x3xf32>
    %4 = "stablehlo.select"(%0, %1, %3) : (tensor<2x3xi1>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %5 = stablehlo.convert %4 : (tensor<2x3xf32>) -> tensor<2x3xbf16>
    %6 = "chlo.erf"(%arg0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
)");
}

TEST(ElementwiseTypes, InfersResults) {
  Builder b;
  Value c = b.parameter(Type(DType::kC128, {4}));
  Value u = b.parameter(Type(DType::kU8, {4}));
  EXPECT_EQ(b.abs(c).dtype(), DType::kF64);
  EXPECT_EQ(b.real(c).dtype(), DType::kF64);
  EXPECT_EQ(b.complex(b.real(c), b.imag(c)).type(), c.type());
  EXPECT_EQ(b.eq(c, c).type(), Type(DType::kBool, {4}));
  EXPECT_EQ(b.abs(u).id(), u.id());
  EXPECT_EQ(b.convert(u, DType::kU8).id(), u.id());
  EXPECT_EQ(b.is_finite(b.real(c)).dtype(), DType::kBool);
}

TEST(ElementwiseErrors, NameTheTypes) {
  Builder b;
  Value f = b.parameter(Type(DType::kF32, {2}));
  Value g = b.parameter(Type(DType::kF32, {3}));
  Value i = b.parameter(Type(DType::kS32, {2}));
  Value p = b.parameter(Type(DType::kBool, {2}));
  Value c = b.parameter(Type(DType::kC64, {2}));
  EXPECT_INVALID(b.add(f, g), "[add] expected equal shapes, got (tensor<2xf32>, tensor<3xf32>)");
  EXPECT_INVALID(f * i,
                 "[multiply] expected operands of one type, got (tensor<2xf32>, tensor<2xi32>)");
  EXPECT_INVALID(b.tanh(i), "[tanh] expected float or complex, got tensor<2xi32>");
  EXPECT_INVALID(b.subtract(p, p),
                 "[subtract] expected integer or float or complex, got tensor<2xi1>");
  EXPECT_INVALID(b.lt(c, c),
                 "[compare] expected bool or integer or float, got tensor<2xcomplex<f32>>");
  EXPECT_INVALID(b.select(i, f, f), "[select] expected a bool predicate, got tensor<2xi32>");
  EXPECT_INVALID(b.erf(i), "[erf] expected float, got tensor<2xi32>");
  EXPECT_INVALID(b.complex(i, i), "[complex] expected f32 or f64, got tensor<2xi32>");
  EXPECT_INVALID(
      b.bitcast_convert(f, Type(DType::kS16, {2})),
      "[bitcast_convert] expected a type with the bits of tensor<2xf32>, got tensor<2xi16>");
  EXPECT_INVALID(b.add(f, Value()), "[add] expected a value, got an undefined one");
  Builder other;
  EXPECT_INVALID(other.negate(f),
                 "[negate] expected a value of this builder, got one of another builder");
}

using ElementwiseRun = RunTest;

TEST_F(ElementwiseRun, UnaryFloat) {
  struct Case {
    Value (Builder::*op)(const Value&);
    double (*expected)(double);
  };
  const Case cases[] = {
      {&Builder::abs, [](double v) { return std::abs(v); }},
      {&Builder::cbrt, [](double v) { return std::cbrt(v); }},
      {&Builder::ceil, [](double v) { return std::ceil(v); }},
      {&Builder::cosine, [](double v) { return std::cos(v); }},
      {&Builder::exponential, [](double v) { return std::exp(v); }},
      {&Builder::exponential_minus_one, [](double v) { return std::expm1(v); }},
      {&Builder::floor, [](double v) { return std::floor(v); }},
      {&Builder::log, [](double v) { return std::log(v); }},
      {&Builder::log_plus_one, [](double v) { return std::log1p(v); }},
      {&Builder::logistic, [](double v) { return 1 / (1 + std::exp(-v)); }},
      {&Builder::negate, [](double v) { return -v; }},
      {&Builder::round_nearest_afz, [](double v) { return std::round(v); }},
      {&Builder::round_nearest_even, [](double v) { return std::nearbyint(v); }},
      {&Builder::rsqrt, [](double v) { return 1 / std::sqrt(v); }},
      {&Builder::sign, [](double v) { return static_cast<double>((v > 0) - (v < 0)); }},
      {&Builder::sine, [](double v) { return std::sin(v); }},
      {&Builder::sqrt, [](double v) { return std::sqrt(v); }},
      {&Builder::tan, [](double v) { return std::tan(v); }},
      {&Builder::tanh, [](double v) { return std::tanh(v); }},
      {&Builder::acos, [](double v) { return std::acos(v); }},
      {&Builder::acosh, [](double v) { return std::acosh(v); }},
      {&Builder::asin, [](double v) { return std::asin(v); }},
      {&Builder::asinh, [](double v) { return std::asinh(v); }},
      {&Builder::atan, [](double v) { return std::atan(v); }},
      {&Builder::atanh, [](double v) { return std::atanh(v); }},
      {&Builder::conj, [](double v) { return v; }},
      {&Builder::cosh, [](double v) { return std::cosh(v); }},
      {&Builder::erf, [](double v) { return std::erf(v); }},
      {&Builder::erfc, [](double v) { return std::erfc(v); }},
      {&Builder::lgamma, [](double v) { return std::lgamma(v); }},
      {&Builder::sinh, [](double v) { return std::sinh(v); }},
  };
  std::vector<float> data = {0.25f, 0.5f, 0.9f, 1.5f, 2.5f, -0.3f, -1.75f};
  Value x = input(f32({7}, data));
  Values results;
  for (const Case& c : cases) results.push_back((b.*c.op)(x));
  std::vector<Array> got = run(results);
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(i);
    std::vector<float> expected;
    for (float v : data) expected.push_back(static_cast<float>(cases[i].expected(v)));
    expect_near(got[i].as<float>(), expected, 2e-5f);
  }
}

TEST_F(ElementwiseRun, SpecialFunctions) {
  Value x = input(f32({3}, {0.25f, 0.5f, 1.5f}));
  Value one = b.like(x, 1);
  Value two = b.like(x, 2);
  std::vector<Array> got = run({b.digamma(x), b.erf_inv(b.splat(0.5, x.type())), b.bessel_i1e(x),
                                b.polygamma(one, x), b.zeta(two, x), b.next_after(x, two)});
  expect_near(got[0].as<float>(), {-4.2274535f, -1.9635100f, 0.0364899f});
  expect_near(got[1].as<float>(), {0.4769363f, 0.4769363f, 0.4769363f});
  expect_near(got[2].as<float>(), {0.0981197f, 0.1564208f, 0.2190393f});
  expect_near(got[3].as<float>(), {17.197329f, 4.9348022f, 0.9348022f});
  expect_near(got[4].as<float>(), {17.197329f, 4.9348022f, 0.9348022f});
  EXPECT_EQ(got[5].as<float>(),
            (std::vector<float>{std::nextafter(0.25f, 2.f), std::nextafter(0.5f, 2.f),
                                std::nextafter(1.5f, 2.f)}));
}

TEST_F(ElementwiseRun, BinaryFloat) {
  Value x = input(f32({4}, {5, -5, 2, 0.5f}));
  Value y = input(f32({4}, {3, 3, -1, 2}));
  std::vector<Array> got = run({x + y, x - y, x * y, x / y, b.remainder(x, y), b.maximum(x, y),
                                b.minimum(x, y), b.power(b.abs(x), y), b.atan2(x, y),
                                b.clamp(b.scalar(-1, DType::kF32), x, b.scalar(1, DType::kF32)),
                                b.clamp(b.scalar(-1, DType::kF32), x, y), 2.0 - x});
  expect_near(got[0].as<float>(), {8, -2, 1, 2.5f});
  expect_near(got[1].as<float>(), {2, -8, 3, -1.5f});
  expect_near(got[2].as<float>(), {15, -15, -2, 1});
  expect_near(got[3].as<float>(), {5.f / 3, -5.f / 3, -2, 0.25f});
  expect_near(got[4].as<float>(), {2, -2, 0, 0.5f});
  expect_near(got[5].as<float>(), {5, 3, 2, 2});
  expect_near(got[6].as<float>(), {3, -5, -1, 0.5f});
  expect_near(got[7].as<float>(), {125, 125, 0.5f, 0.25f});
  expect_near(got[8].as<float>(), {std::atan2(5.f, 3.f), std::atan2(-5.f, 3.f),
                                   std::atan2(2.f, -1.f), std::atan2(0.5f, 2.f)});
  expect_near(got[9].as<float>(), {1, -1, 1, 0.5f});
  expect_near(got[10].as<float>(), {3, -1, -1, 0.5f});
  expect_near(got[11].as<float>(), {-3, 7, 0, 1.5f});
}

TEST_F(ElementwiseRun, Integers) {
  Value x = input(s32({4}, {7, -7, 12, 1}));
  Value y = input(s32({4}, {2, 2, 5, 3}));
  Value u = b.convert(y, DType::kU16);
  std::vector<Array> got = run({x / y, b.remainder(x, y), b.and_(x, y), b.or_(x, y), b.xor_(x, y),
                                b.not_(x), b.shift_left(x, y), b.shift_right_arithmetic(x, y),
                                b.shift_right_logical(x, y), b.popcnt(y), b.count_leading_zeros(y),
                                b.convert(b.sign(u), DType::kS32), b.sign(x), b.abs(x)});
  using V = std::vector<int32_t>;
  EXPECT_EQ(got[0].as<int32_t>(), (V{3, -3, 2, 0}));
  EXPECT_EQ(got[1].as<int32_t>(), (V{1, -1, 2, 1}));
  EXPECT_EQ(got[2].as<int32_t>(), (V{2, 0, 4, 1}));
  EXPECT_EQ(got[3].as<int32_t>(), (V{7, -5, 13, 3}));
  EXPECT_EQ(got[4].as<int32_t>(), (V{5, -5, 9, 2}));
  EXPECT_EQ(got[5].as<int32_t>(), (V{-8, 6, -13, -2}));
  EXPECT_EQ(got[6].as<int32_t>(), (V{28, -28, 384, 8}));
  EXPECT_EQ(got[7].as<int32_t>(), (V{1, -2, 0, 0}));
  EXPECT_EQ(got[8].as<int32_t>(), (V{1, 0x3FFFFFFE, 0, 0}));
  EXPECT_EQ(got[9].as<int32_t>(), (V{1, 1, 2, 2}));
  EXPECT_EQ(got[10].as<int32_t>(), (V{30, 30, 29, 30}));
  EXPECT_EQ(got[11].as<int32_t>(), (V{1, 1, 1, 1}));
  EXPECT_EQ(got[12].as<int32_t>(), (V{1, -1, 1, 1}));
  EXPECT_EQ(got[13].as<int32_t>(), (V{7, 7, 12, 1}));
}

TEST_F(ElementwiseRun, ComparesByTheSignOfTheType) {
  Value x = input(s32({3}, {-1, 0, 1}));
  Value zero = b.like(x, 0);
  Value u = b.convert(x, DType::kU32);
  Value p = b.ne(x, zero);
  std::vector<Array> got =
      run({b.lt(x, zero), b.lt(u, b.like(u, 1)), b.ge(x, zero), b.le(x, zero),
           b.gt(u, b.like(u, 1)), b.eq(p, b.like(p, 1)), b.add(p, p), b.multiply(p, p), b.not_(p),
           b.maximum(p, p), b.gt(p, b.like(p, 0))});
  using V = std::vector<char>;
  EXPECT_EQ(got[0].bytes, (V{1, 0, 0}));
  EXPECT_EQ(got[1].bytes, (V{0, 1, 0}));
  EXPECT_EQ(got[2].bytes, (V{0, 1, 1}));
  EXPECT_EQ(got[3].bytes, (V{1, 1, 0}));
  EXPECT_EQ(got[4].bytes, (V{1, 0, 0}));
  for (size_t i : {5, 6, 7, 9, 10}) EXPECT_EQ(got[i].bytes, (V{1, 0, 1})) << i;
  EXPECT_EQ(got[8].bytes, (V{0, 1, 0}));
}

TEST_F(ElementwiseRun, Complex) {
  using C = std::complex<float>;
  Value x = input(c64({2}, {C(3, 4), C(-1, 0.5f)}));
  std::vector<Array> got =
      run({b.abs(x), b.real(x), b.imag(x), b.conj(x), x * x, b.exponential(x), b.eq(x, b.conj(x)),
           x + 1.0, b.acos(x), b.atan(x), b.asinh(x), b.cosh(x), b.sqrt(x), b.power(x, x)});
  expect_near(got[0].as<float>(), {5, std::abs(C(-1, 0.5f))});
  expect_near(got[1].as<float>(), {3, -1});
  expect_near(got[2].as<float>(), {4, 0.5f});
  EXPECT_EQ(got[3].as<C>(), (std::vector<C>{C(3, -4), C(-1, -0.5f)}));
  EXPECT_EQ(got[4].as<C>()[0], C(-7, 24));
  auto near = [&](size_t i, C expected) {
    EXPECT_LT(std::abs(got[i].as<C>()[1] - expected), 1e-5f) << i << " " << got[i].as<C>()[1];
  };
  near(5, std::exp(C(-1, 0.5f)));
  EXPECT_EQ(got[6].bytes, (std::vector<char>{0, 0}));
  near(7, C(0, 0.5f));
  near(8, std::acos(C(-1, 0.5f)));
  near(9, std::atan(C(-1, 0.5f)));
  near(10, std::asinh(C(-1, 0.5f)));
  near(11, std::cosh(C(-1, 0.5f)));
  near(12, std::sqrt(C(-1, 0.5f)));
  near(13, std::pow(C(-1, 0.5f), C(-1, 0.5f)));
}

TEST_F(ElementwiseRun, Conversions) {
  Value x = input(f32({3}, {1.5f, -2.5f, 0}));
  Value wide = b.bitcast_convert(x, Type(DType::kU16, {3, 2}));
  Value f8 = b.convert(x, DType::kF8E4M3FN);
  std::vector<Array> got =
      run({b.convert(x, DType::kS8), b.convert(x, DType::kBool),
           b.bitcast_convert(x, Type(DType::kS32, {3})),
           b.bitcast_convert(wide, Type(DType::kF32, {3})), b.reduce_precision(x, 8, 0),
           b.convert(f8 + f8, DType::kF32),
           b.bitcast_convert(b.convert(x, DType::kF8E5M2), Type(DType::kU8, {3})),
           b.real(b.convert(x, DType::kC64)), b.convert(b.convert(x, DType::kF16), DType::kF64)});
  EXPECT_EQ(got[0].bytes, (std::vector<char>{1, -2, 0}));
  EXPECT_EQ(got[1].bytes, (std::vector<char>{1, 1, 0}));
  EXPECT_EQ(got[2].as<int32_t>()[0], 0x3FC00000);
  expect_near(got[3].as<float>(), {1.5f, -2.5f, 0});
  expect_near(got[4].as<float>(), {2, -2, 0});
  expect_near(got[5].as<float>(), {3, -5, 0});
  EXPECT_EQ(got[6].as<uint8_t>(), (std::vector<uint8_t>{0x3E, 0xC1, 0}));
  expect_near(got[7].as<float>(), {1.5f, -2.5f, 0});
  EXPECT_EQ(got[8].as<double>(), (std::vector<double>{1.5, -2.5, 0}));
}

TEST_F(ElementwiseRun, IsFiniteAndSelect) {
  Value x = input(f32({3}, {1, kInf, std::nanf("")}));
  Value ok = b.is_finite(x);
  std::vector<Array> got =
      run({b.select(ok, x, b.like(x, -1)), b.select(b.scalar(1, DType::kBool), x, b.like(x, -1))});
  expect_near(got[0].as<float>(), {1, -1, -1});
  expect_near(got[1].as<float>(), {1, kInf, std::nanf("")});
}

}  // namespace
}  // namespace torch_tpu::stablehlo
