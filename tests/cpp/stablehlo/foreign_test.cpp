// Functions that come as text: once in the module, called where they are needed.
#include "csrc/stablehlo/foreign.h"

#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

const Type kPair(DType::kF32, {2});

ForeignFunction doubled() {
  return {"twice",
          "  func.func private @twice(%arg0: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {\n"
          "    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>\n"
          "    return %0, %arg0 : tensor<2xf32>, tensor<2xf32>\n"
          "  }",
          {kPair},
          {kPair, kPair}};
}

TEST(Foreign, TextIsThereOnce) {
  Builder b;
  Value x = b.parameter(kPair);
  Value once = call_foreign(b, doubled(), {x})[0];
  const std::string text = b.finish({call_foreign(b, doubled(), {once})[0]}, "m");
  const auto first = text.find("func.func private @twice(");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(text.find("func.func private @twice(", first + 1), std::string::npos);
  EXPECT_NE(text.find("%0:2 = \"func.call\"(%arg0) <{callee = @twice}> : (tensor<2xf32>) -> "
                      "(tensor<2xf32>, tensor<2xf32>)"),
            std::string::npos)
      << text;
}

TEST(Foreign, ErrorsNameTheTypes) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {3}));
  EXPECT_INVALID(call_foreign(b, doubled(), {x}),
                 "[func.call] expected tensor<2xf32>, got tensor<3xf32>");
  EXPECT_INVALID(call_foreign(b, doubled(), {}),
                 "[func.call] expected 1 operands of @twice, got 0");
}

using ForeignRun = RunTest;

TEST_F(ForeignRun, CallsInTheFunctionAndInABranch) {
  Value x = input(f32({2}, {1, 2}));
  Value once = call_foreign(b, doubled(), {x})[0];
  Value more = b.if_else(
      b.lt(b.scalar(0, DType::kS32), b.scalar(1, DType::kS32)),
      [&](const Values&) -> Values { return {call_foreign(b, doubled(), {once})[0]}; },
      [&](const Values&) -> Values { return {once}; })[0];
  EXPECT_EQ(run({more})[0].as<float>(), (std::vector<float>{4, 8}));
}

}  // namespace
}  // namespace torch_tpu::stablehlo
