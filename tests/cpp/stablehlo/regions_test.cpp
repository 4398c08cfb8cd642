// Loops and branches that find out what they carry while their bodies are built.
#include "csrc/stablehlo/regions.h"

#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

const Type kNumber(DType::kS32, {});

TEST(RegionsErrors, NameTheTypes) {
  Builder b;
  Value n = b.parameter(kNumber);
  Value p = b.parameter(Type(DType::kBool, {}));
  auto yes = [&](const Values&) -> Values { return {p}; };
  EXPECT_INVALID(growing_loop(b, {n}, yes,
                              [&](const Values& v, const AddCarry& add) -> Values {
                                add(kNumber, 0);
                                return v;
                              }),
                 "[while] expected a body that returns (tensor<i32>, tensor<i32>), got "
                 "(tensor<i32>)");
  auto arm = [](Values results, Values own) { return [=] { return Arm{results, own}; }; };
  EXPECT_INVALID(if_else(b, p, arm({n}, {}), arm({p}, {}), n),
                 "[if] expected branches that all return (tensor<i32>), got (tensor<i1>)");
  EXPECT_INVALID(if_else(b, p, arm({n}, {p}), arm({n}, {}), n),
                 "[if] expected tensor<i32>, got tensor<i1>");
}

using RegionsRun = RunTest;

TEST_F(RegionsRun, CarriesAreAddedInside) {
  Value limit = input(s32({}, {4}));
  Value one = b.scalar(1, DType::kS32);
  // Also from a region inside the body: how often i was odd, starting at 10.
  Values out = growing_loop(
      b, {b.scalar(0, DType::kS32)},
      [&](const Values& v) -> Values {
        EXPECT_EQ(v.size(), 3u);
        return {b.lt(v[0], limit)};
      },
      [&](const Values& v, const AddCarry& add) -> Values {
        Value odds;
        Value next = b.if_else(
            b.eq(b.and_(v[0], one), one),
            [&](const Values&) -> Values {
              odds = add(kNumber, 10);
              return {odds + one};
            },
            [&](const Values&) -> Values { return {odds}; })[0];
        Value squares = add(Type(DType::kF32, {4}), 0);
        Value square = b.reshape(b.convert(b.multiply(v[0], v[0]), DType::kF32), {1});
        return {v[0] + one, next, b.dynamic_update_slice(squares, square, {v[0]})};
      });
  std::vector<Array> got = run(out);
  EXPECT_EQ(got[0].as<int32_t>()[0], 4);
  EXPECT_EQ(got[1].as<int32_t>()[0], 12);
  expect_near(got[2].as<float>(), {0, 1, 4, 9});
}

TEST_F(RegionsRun, ArmsHaveResultsOfTheirOwn) {
  Value x = input(s32({}, {7}));
  Value absent = b.scalar(-1, DType::kS32);
  auto arm = [&](int own, int by) {
    return [this, x, own, by] { return Arm{{x * by}, Values(own, x + static_cast<double>(by))}; };
  };
  Values both;
  for (bool taken : {true, false}) {
    Value p = b.eq(x, b.scalar(taken ? 7 : 8, DType::kS32));
    Values out = if_else(b, p, arm(1, 2), arm(2, 3), absent);
    ASSERT_EQ(out.size(), 4u);
    Value all = b.concatenate({b.reshape(out[0], {1}), b.reshape(out[1], {1}),
                               b.reshape(out[2], {1}), b.reshape(out[3], {1})},
                              0);
    both.push_back(all);
  }
  std::vector<Array> got = run(both);
  EXPECT_EQ(got[0].as<int32_t>(), (std::vector<int32_t>{14, 9, -1, -1}));
  EXPECT_EQ(got[1].as<int32_t>(), (std::vector<int32_t>{21, -1, 10, 10}));
}

TEST_F(RegionsRun, ParametersMayAppearInside) {
  Value x = input(f32({2}, {1, 2}));
  Value p = input(array<char>(DType::kBool, {}, {1}));
  Value late;
  Values out = b.if_else(
      p,
      [&](const Values&) -> Values {
        late = input(f32({2}, {10, 20}));
        return {x + late};
      },
      [&](const Values&) -> Values { return {late}; });
  expect_near(run({out[0]})[0].as<float>(), {11, 22});
}

}  // namespace
}  // namespace torch_tpu::stablehlo
