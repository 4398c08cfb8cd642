// Labels and shardings: what they print, and that nothing prints without them.
#include "csrc/stablehlo/annotate.h"

#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

TEST(Annotate, LabelsOfInnerScopesWin) {
  Builder b;
  const Value x = b.parameter(Type(DType::kF32, {4}));
  Value y = b.negate(x);
  {
    const LabelScope outer("a \"quoted\" one");
    y = b.negate(y);
    {
      const LabelScope inner("inner");
      y = b.negate(y);
    }
    y = b.negate(y);
  }
  y = b.negate(y);
  EXPECT_EQ(current_label(), nullptr);
  EXPECT_EQ(body(b, {y}), R"(    %0 = stablehlo.negate %arg0 : tensor<4xf32>
    %1 = stablehlo.negate %0 : tensor<4xf32> loc("a \22quoted\22 one")
    %2 = stablehlo.negate %1 : tensor<4xf32> loc("inner")
    %3 = stablehlo.negate %2 : tensor<4xf32> loc("a \22quoted\22 one")
    %4 = stablehlo.negate %3 : tensor<4xf32>
)");
}

TEST(Annotate, ShardingIsAnAttribute) {
  Builder b;
  const Value x = b.parameter(Type(DType::kF32, {4, 2}));
  EXPECT_EQ(
      body(b, {sharding_constraint(b, x, "{devices=[2,1]<=[2]}")}),
      R"(    %0 = "stablehlo.custom_call"(%arg0) <{call_target_name = "Sharding", has_side_effect = false}> {mhlo.sharding = "{devices=[2,1]<=[2]}"} : (tensor<4x2xf32>) -> tensor<4x2xf32>
)");
}

}  // namespace
}  // namespace torch_tpu::stablehlo
