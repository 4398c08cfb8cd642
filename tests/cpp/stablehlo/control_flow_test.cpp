// Loops, branches, and what their bodies capture.
#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

TEST(ControlFlowText, WhileAndIf) {
  Builder b;
  Value n = b.parameter(Type(DType::kS32, {}));
  Value p = b.parameter(Type(DType::kBool, {}));
  Values loop = b.while_loop(
      {n}, [&](const Values& v) -> Values { return {b.lt(v[0], n)}; },
      [&](const Values& v) -> Values { return {v[0] + n}; });
  Values pick = b.if_else(
      p, [&](const Values&) -> Values { return {loop[0]}; },
      [&](const Values&) -> Values { return {n}; });
  EXPECT_EQ(body(b, pick), R"(    %0 = "stablehlo.while"(%arg0) ({
    ^bb0(%1: tensor<i32>):
      %2 = stablehlo.compare LT, %1, %arg0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    }, {
    ^bb0(%3: tensor<i32>):
      %4 = stablehlo.add %3, %arg0 : tensor<i32>
      stablehlo.return %4 : tensor<i32>
    }) : (tensor<i32>) -> tensor<i32>
    %5 = "stablehlo.if"(%arg1) ({
      stablehlo.return %0 : tensor<i32>
    }, {
      stablehlo.return %arg0 : tensor<i32>
    }) : (tensor<i1>) -> tensor<i32>
)");
}

TEST(ControlFlowText, SideEffectsAreKept) {
  Builder b;
  Value p = b.parameter(Type(DType::kBool, {}));
  CustomCall call;
  call.target = "log";
  call.has_side_effect = true;
  auto effect = [&](const Values&) -> Values {
    b.custom_call(call, {p}, {});
    return {};
  };
  b.if_else(p, effect, [](const Values&) -> Values { return {}; });
  EXPECT_NE(body(b, {}).find("custom_call"), std::string::npos);
}

TEST(ControlFlowErrors, NameTheTypes) {
  Builder b;
  Value n = b.parameter(Type(DType::kS32, {}));
  Value p = b.parameter(Type(DType::kBool, {}));
  auto self = [](const Values& v) -> Values { return v; };
  auto yes = [&](const Values&) -> Values { return {p}; };
  auto number = [&](const Values&) -> Values { return {n}; };
  EXPECT_INVALID(b.while_loop({n}, self, self),
                 "[while] expected a condition that returns tensor<i1>, got (tensor<i32>)");
  EXPECT_INVALID(b.while_loop({n}, yes, yes),
                 "[while] expected a body that returns (tensor<i32>), got (tensor<i1>)");
  EXPECT_INVALID(b.if_else(n, yes, yes), "[if] expected tensor<i1>, got tensor<i32>");
  EXPECT_INVALID(b.if_else(p, yes, number),
                 "[if] expected branches that all return (tensor<i1>), got (tensor<i32>)");
  EXPECT_INVALID(b.switch_case(p, {yes}), "[case] expected tensor<i32>, got tensor<i1>");
  EXPECT_INVALID(b.switch_case(n, {}), "[case] expected at least one branch, got none");
}

using ControlFlowRun = RunTest;

TEST_F(ControlFlowRun, WhileWithCaptures) {
  Value x = input(f32({2}, {1, 2}));
  Value limit = input(s32({}, {5}));
  Value step = b.scalar(1, DType::kS32);
  Values out = b.while_loop(
      {b.scalar(0, DType::kS32), b.like(x, 0)},
      [&](const Values& v) -> Values { return {b.lt(v[0], limit)}; },
      [&](const Values& v) -> Values { return {v[0] + step, v[1] + x}; });
  std::vector<Array> got = run(out);
  EXPECT_EQ(got[0].as<int32_t>()[0], 5);
  expect_near(got[1].as<float>(), {5, 10});
}

TEST_F(ControlFlowRun, BranchesWithCaptures) {
  Value x = input(f32({2}, {1, 2}));
  Value i = input(s32({}, {2}));
  Value p = b.gt(i, b.scalar(3, DType::kS32));
  auto scaled = [&](double by) {
    return [this, x, by](const Values&) -> Values {
      return {x * by, b.reduce(x * by, b.scalar(0, DType::kF32), {0}, Reduction::kAdd)};
    };
  };
  Values chosen = b.if_else(p, scaled(10), scaled(-1));
  Values cased = b.switch_case(i, {scaled(1), scaled(2), scaled(3)});
  Values same = b.optimization_barrier({x, i});
  std::vector<Array> got = run({chosen[0], chosen[1], cased[0], cased[1], same[0], same[1]});
  expect_near(got[0].as<float>(), {-1, -2});
  expect_near(got[1].as<float>(), {-3});
  expect_near(got[2].as<float>(), {3, 6});
  expect_near(got[3].as<float>(), {9});
  expect_near(got[4].as<float>(), {1, 2});
  EXPECT_EQ(got[5].as<int32_t>()[0], 2);
}

TEST_F(ControlFlowRun, Nested) {
  Value n = input(s32({}, {3}));
  Value zero = b.scalar(0, DType::kS32), one = b.scalar(1, DType::kS32);
  // sum over i < n of (i odd ? sum over j < i of n : 0)
  Values out = b.while_loop(
      {zero, zero}, [&](const Values& v) -> Values { return {b.lt(v[0], b.add(n, one))}; },
      [&](const Values& v) -> Values {
        Value odd = b.eq(b.and_(v[0], one), one);
        Value part = b.if_else(
            odd,
            [&](const Values&) -> Values {
              Values inner = b.while_loop(
                  {zero, zero}, [&](const Values& w) -> Values { return {b.lt(w[0], v[0])}; },
                  [&](const Values& w) -> Values { return {w[0] + one, w[1] + n}; });
              return {inner[1]};
            },
            [&](const Values&) -> Values { return {zero}; })[0];
        return {v[0] + one, v[1] + part};
      });
  EXPECT_EQ(run_s32(out[1]), (std::vector<int32_t>{12}));
}

}  // namespace
}  // namespace torch_tpu::stablehlo
