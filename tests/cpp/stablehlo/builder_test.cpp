// The function around the instructions: parameters, donation, dead code, scopes, size.
#include <chrono>

#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

TEST(BuilderText, WholeModule) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2}));
  Value y = b.parameter(Type(DType::kF32, {2}));
  b.alias(1, 0);
  EXPECT_EQ(b.num_parameters(), 2);
  EXPECT_EQ(b.finish({x + y, x}, "step_1"), R"(module @step_1 {
  func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<2xf32>
    return %0, %arg0 : tensor<2xf32>, tensor<2xf32>
  }
}
)");
}

TEST(BuilderText, AttributesAndPrologue) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {4}));
  b.set_partitions(1, 4);
  b.module_prologue("  sdy.mesh @mesh = <[\"x\"=4]>");
  b.parameter_attribute(0, "sdy.sharding = #sdy.sharding<@mesh, [{\"x\"}]>");
  b.result_attribute(0, "sdy.sharding = #sdy.sharding<@mesh, [{}]>");
  b.alias(0, 0);
  EXPECT_EQ(
      b.finish({x}, "a b"),
      R"(module @"a b" attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>, tf.aliasing_output = 0 : i32}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
    return %arg0 : tensor<4xf32>
  }
}
)");
}

TEST(BuilderText, DeadCodeLeavesNoTrace) {
  auto build = [](bool dead) {
    Builder b;
    Value x = b.parameter(Type(DType::kF32, {2}));
    if (dead) b.reduce(b.exponential(x), b.scalar(0, DType::kF32), {0}, Reduction::kAdd);
    return b.finish({x + x});
  };
  EXPECT_EQ(build(true), build(false));
}

TEST(BuilderErrors, Function) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2}));
  EXPECT_INVALID(b.alias(1, 0), "[alias] expected a parameter below 1, got 1");
  b.alias(0, 0);
  Value i = b.convert(x, DType::kS32);
  EXPECT_INVALID(b.finish({i}),
                 "[alias] expected an output of type tensor<2xf32>, got tensor<2xi32>");
  EXPECT_INVALID(b.set_partitions(0, 1), "[set_partitions] expected positive counts, got [0, 1]");
  EXPECT_INVALID(b.parameter(Type(DType::kF32, {-1})),
                 "[parameter] expected sizes of at least 0, got [-1]");
  EXPECT_INVALID(b.finish({Value()}), "[finish] expected a value, got an undefined one");
}

TEST(BuilderErrors, ValuesStayInTheirRegion) {
  Builder b;
  Value p = b.parameter(Type(DType::kBool, {}));
  Value x = b.parameter(Type(DType::kF32, {}));
  Value leaked;
  b.if_else(
      p,
      [&](const Values&) -> Values {
        leaked = x + x;
        return {leaked};
      },
      [&](const Values&) -> Values { return {x}; });
  EXPECT_INVALID(b.negate(leaked),
                 "[negate] expected a value in scope, got one of a region that has ended");
  EXPECT_INVALID(b.finish({leaked}), "[finish] expected a value in scope, got one of a region");
}

TEST(BuilderErrors, AThrowingRegionIsClosed) {
  Builder b;
  Value p = b.parameter(Type(DType::kBool, {}));
  auto fails = [](const Values&) -> Values { throw std::runtime_error("stop"); };
  EXPECT_THROW(b.if_else(p, fails, fails), std::runtime_error);
  EXPECT_EQ(body(b, {b.not_(p)}), "    %0 = stablehlo.not %arg0 : tensor<i1>\n");
}

using BuilderRun = RunTest;

TEST_F(BuilderRun, DonatedAndUnusedParameters) {
  Value x = input(f32({2}, {1, 2}));
  input(f32({3}, {0, 0, 0}));
  b.alias(0, 0);
  expect_near(run_f32(x + x), {2, 4});
}

TEST_F(BuilderRun, NoParametersAndZeroSizes) {
  Value x = b.splat(1, Type(DType::kF32, {0, 3}));
  std::vector<Array> got =
      run({x + x, b.reduce(x, b.scalar(7, DType::kF32), {0}, Reduction::kAdd),
           b.concatenate({x, b.splat(2, Type(DType::kF32, {1, 3}))}, 0), b.reshape(x, {3, 0}),
           b.broadcast_to(b.splat(1, Type(DType::kF32, {0})), {2, 0})});
  EXPECT_TRUE(got[0].bytes.empty());
  expect_near(got[1].as<float>(), {7, 7, 7});
  expect_near(got[2].as<float>(), {2, 2, 2});
}

TEST_F(BuilderRun, NoResults) {
  input(f32({2}, {1, 2}));
  EXPECT_TRUE(run({}).empty());
}

// Each op must cost the same however many came before.
TEST(BuilderSpeed, LongPrograms) {
  auto seconds = [](int ops) {
    auto start = std::chrono::steady_clock::now();
    Builder b;
    Value x = b.parameter(Type(DType::kF32, {8, 8}));
    Value y = x;
    for (int i = 0; i < ops; ++i) y = b.tanh(y + x);
    size_t size = b.finish({y}).size();
    EXPECT_GT(size, static_cast<size_t>(ops) * 50);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds(1000);
  double small = seconds(5000), large = seconds(50000);
  EXPECT_LT(large, 100 * small + 0.1);
  EXPECT_LT(large, 5.0);
}

}  // namespace
}  // namespace torch_tpu::stablehlo
