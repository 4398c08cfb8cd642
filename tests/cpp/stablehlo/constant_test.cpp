// Constants: their text, and that the compiler reads back exactly what was meant.
#include <limits>

#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string text_of(Builder& b, const Value& x) {
  std::string line = body(b, {x});
  size_t begin = line.find("dense<");
  return line.substr(begin, line.find(" : ") - begin);
}

TEST(ConstantText, Floats) {
  Builder b;
  auto text = [&](double v, DType d) { return text_of(b, b.scalar(v, d)); };
  EXPECT_EQ(text(1, DType::kF32), "dense<1.0>");
  EXPECT_EQ(text(-0.0, DType::kF32), "dense<-0.0>");
  EXPECT_EQ(text(0.1, DType::kF32), "dense<0.1>");
  EXPECT_EQ(text(1e-30, DType::kF32), "dense<1.0e-30>");
  EXPECT_EQ(text(1.25e30, DType::kF64), "dense<1.25e+30>");
  EXPECT_EQ(text(kInf, DType::kF32), "dense<0x7F800000>");
  EXPECT_EQ(text(-kInf, DType::kBF16), "dense<0xFF80>");
  EXPECT_EQ(text(kNan, DType::kF64), "dense<0x7FF8000000000000>");
  EXPECT_EQ(text(kNan, DType::kF8E4M3FN), "dense<0x7F>");
  EXPECT_EQ(text(1e39, DType::kF32), "dense<0x7F800000>");
  EXPECT_EQ(text(-70000, DType::kF16), "dense<0xFC00>");
  EXPECT_EQ(text_of(b, b.splat_complex({1, -kInf}, Type(DType::kC64, {2}))),
            "dense<(1.0, 0xFF800000)>");
}

TEST(ConstantText, IntegersAndBools) {
  Builder b;
  EXPECT_EQ(text_of(b, b.scalar(1, DType::kBool)), "dense<true>");
  EXPECT_EQ(text_of(b, b.scalar(-3, DType::kS8)), "dense<-3>");
  EXPECT_EQ(text_of(b, b.lowest(DType::kS64)), "dense<-9223372036854775808>");
  EXPECT_EQ(text_of(b, b.highest(DType::kS64)), "dense<9223372036854775807>");
  EXPECT_EQ(text_of(b, b.highest(DType::kU64)), "dense<18446744073709551615>");
  EXPECT_EQ(text_of(b, b.highest(DType::kU8)), "dense<255>");
  EXPECT_EQ(text_of(b, b.lowest(DType::kS8)), "dense<-128>");
  EXPECT_EQ(text_of(b, b.highest(DType::kBool)), "dense<true>");
  EXPECT_EQ(text_of(b, b.lowest(DType::kF8E4M3FN)), "dense<-448.0>");
}

// What no double has; and to f32 an integer is rounded once, not by way of a double.
TEST(ConstantText, LargeIntegers) {
  Builder b;
  const int64_t large = (int64_t{1} << 53) + 1;
  const int64_t above_tie = (int64_t{1} << 60) + (int64_t{1} << 36) + 1;
  EXPECT_EQ(text_of(b, b.scalar(large, DType::kS64)), "dense<9007199254740993>");
  EXPECT_EQ(text_of(b, b.scalar(-large, DType::kS64)), "dense<-9007199254740993>");
  EXPECT_EQ(text_of(b, b.scalar(~uint64_t{0}, DType::kU64)), "dense<18446744073709551615>");
  EXPECT_EQ(text_of(b, b.scalar(above_tie, DType::kF32)),
            text_of(b, b.scalar(0x1.000002p60, DType::kF32)));
  EXPECT_EQ(text_of(b, b.ints({above_tie}, Type(DType::kF32, {1}))),
            text_of(b, b.floats({0x1.000002p60}, Type(DType::kF32, {1}))));
  EXPECT_INVALID(b.scalar(~uint64_t{0}, DType::kS64),
                 "[constant] expected an integer that fits in i64, got 18446744073709551615");
  EXPECT_INVALID(b.scalar(-1, DType::kU64),
                 "[constant] expected an integer that fits in ui64, got -1");
}

TEST(ConstantText, NestedAndEmpty) {
  Builder b;
  EXPECT_EQ(text_of(b, b.ints({1, 2, 3, 4, 5, 6}, Type(DType::kS32, {2, 3}))),
            "dense<[[1, 2, 3], [4, 5, 6]]>");
  EXPECT_EQ(text_of(b, b.ints({1, 0}, Type(DType::kBool, {2, 1, 1}))),
            "dense<[[[true]], [[false]]]>");
  EXPECT_EQ(text_of(b, b.ints({7}, Type(DType::kS32, {}))), "dense<7>");
  EXPECT_EQ(text_of(b, b.floats({0.5, kNan}, Type(DType::kF32, {2}))), "dense<[0.5, 0x7FC00000]>");
  EXPECT_EQ(text_of(b, b.floats({1}, Type(DType::kC64, {1}))), "dense<[(1.0, 0.0)]>");
  EXPECT_EQ(text_of(b, b.splat(1, Type(DType::kF32, {2, 0}))), "dense<>");
  EXPECT_EQ(text_of(b, b.ints({}, Type(DType::kS32, {0}))), "dense<>");
}

TEST(ConstantErrors, RefuseWhatTheTypeCannotHold) {
  Builder b;
  EXPECT_INVALID(b.scalar(0.5, DType::kS32),
                 "[constant] expected an integer that fits in i32, got 0.5");
  EXPECT_INVALID(b.scalar(256, DType::kU8),
                 "[constant] expected an integer that fits in ui8, got 256");
  EXPECT_INVALID(b.scalar(kNan, DType::kS64),
                 "[constant] expected an integer that fits in i64, got nan");
  EXPECT_INVALID(b.splat_int(-1, Type(DType::kU8, {})),
                 "[constant] expected a value that fits in ui8, got -1");
  EXPECT_INVALID(b.ints({1, 2}, Type(DType::kS32, {3})),
                 "[constant] expected 3 elements for tensor<3xi32>, got 2");
  EXPECT_INVALID(b.splat_complex(1, Type(DType::kF32, {})),
                 "[constant] expected a complex type, got tensor<f32>");
  EXPECT_INVALID(b.lowest(DType::kC64), "[lowest] expected an ordered dtype, got complex<f32>");
  EXPECT_INVALID(b.iota(Type(DType::kS32, {2}), 1), "[iota] expected a dimension below 1, got 1");
}

using ConstantRun = RunTest;

TEST_F(ConstantRun, FloatsAreExact) {
  std::vector<double> values = {0.1,  1.0 / 3, 1e-45,    3.4028234663852886e38, -0.0, 5e-324,
                                kInf, -kInf,   16777217, 1.00000005960464477539};
  Type narrow(DType::kF32, {static_cast<int64_t>(values.size())});
  Type wide(DType::kF64, narrow.dims);
  std::vector<Array> got = run({b.floats(values, narrow), b.floats(values, wide)});
  std::vector<float> floats = got[0].as<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(floats[i], static_cast<float>(values[i])) << i;
    EXPECT_EQ(std::signbit(floats[i]), std::signbit(values[i])) << i;
  }
  EXPECT_EQ(got[1].as<double>(), values);
}

TEST_F(ConstantRun, SmallFloats) {
  auto bits = [&](double v, DType d) {
    Type to(dtype_bytes(d) == 1 ? DType::kU8 : DType::kU16, {});
    return b.convert(b.bitcast_convert(b.scalar(v, d), to), DType::kS32);
  };
  Values all = {
      bits(1.5, DType::kBF16),     bits(kNan, DType::kBF16),    bits(-kInf, DType::kF16),
      bits(65519, DType::kF16),    bits(65520, DType::kF16),    bits(448, DType::kF8E4M3FN),
      bits(464, DType::kF8E4M3FN), bits(465, DType::kF8E4M3FN), bits(-kInf, DType::kF8E5M2),
      bits(0.3, DType::kF8E5M2),   bits(3.39e38, DType::kBF16), bits(3.4e38, DType::kBF16)};
  for (Value& x : all) x = b.reshape(x, {1});
  EXPECT_EQ(run_s32(b.concatenate(all, 0)),
            (std::vector<int32_t>{0x3FC0, 0x7FC0, 0xFC00, 0x7BFF, 0x7C00, 0x7E, 0x7E, 0x7F, 0xFC,
                                  0x35, 0x7F7F, 0x7F80}));
}

TEST_F(ConstantRun, IntegersBoolsComplex) {
  using C = std::complex<float>;
  std::vector<Array> got =
      run({b.ints({INT64_MIN, INT64_MAX, -1}, Type(DType::kS64, {3})), b.highest(DType::kU64),
           b.splat(1, Type(DType::kBool, {2})), b.ints({1, 0, 1}, Type(DType::kBool, {3})),
           b.splat_complex({1.5, -2}, Type(DType::kC64, {2})), b.splat(3, Type(DType::kC128, {})),
           b.splat(1, Type(DType::kF32, {0, 2})), b.ints({-1, 2}, Type(DType::kS8, {2})),
           b.ints({65535, 2}, Type(DType::kU16, {2})),
           b.splat_complex({kNan, kInf}, Type(DType::kC64, {1})), b.lowest(DType::kF32)});
  EXPECT_EQ(got[0].as<int64_t>(), (std::vector<int64_t>{INT64_MIN, INT64_MAX, -1}));
  EXPECT_EQ(got[1].as<uint64_t>()[0], UINT64_MAX);
  EXPECT_EQ(got[2].bytes, (std::vector<char>{1, 1}));
  EXPECT_EQ(got[3].bytes, (std::vector<char>{1, 0, 1}));
  EXPECT_EQ(got[4].as<C>(), (std::vector<C>{C(1.5f, -2), C(1.5f, -2)}));
  EXPECT_EQ(got[5].as<std::complex<double>>()[0], std::complex<double>(3));
  EXPECT_TRUE(got[6].bytes.empty());
  EXPECT_EQ(got[7].bytes, (std::vector<char>{-1, 2}));
  EXPECT_EQ(got[8].as<uint16_t>(), (std::vector<uint16_t>{65535, 2}));
  EXPECT_TRUE(std::isnan(got[9].as<float>()[0]) && std::isinf(got[9].as<float>()[1]));
  EXPECT_EQ(got[10].as<float>()[0], -std::numeric_limits<float>::infinity());
}

TEST_F(ConstantRun, Iota) {
  std::vector<Array> got =
      run({b.iota(Type(DType::kS32, {2, 3}), 1), b.iota(Type(DType::kF32, {2, 3}), 0)});
  EXPECT_EQ(got[0].as<int32_t>(), (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  expect_near(got[1].as<float>(), {0, 0, 0, 1, 1, 1});
}

}  // namespace
}  // namespace torch_tpu::stablehlo
