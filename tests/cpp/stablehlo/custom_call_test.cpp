// custom_call: its text, and one target every XLA knows.
#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

TEST(CustomCallText, StringConfigAndLayouts) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2, 3}));
  CustomCall call;
  call.target = "my.kernel";
  call.backend_config = "{\"a\": \"b\\c\"}\n";
  call.operand_layouts = {{1, 0}};
  call.result_layouts = {{0, 1}, {}};
  Values out = b.custom_call(call, {x}, {Type(DType::kF32, {2, 3}), Type(DType::kS32, {})});
  EXPECT_EQ(
      body(b, out),
      R"x(    %0:2 = "stablehlo.custom_call"(%arg0) <{api_version = 2 : i32, backend_config = "{\22a\22: \22b\5Cc\22}\0A", call_target_name = "my.kernel", has_side_effect = false, operand_layouts = [dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<> : tensor<0xindex>]}> : (tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<i32>)
)x");
}

TEST(CustomCallText, DictionaryAndAliases) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2}));
  CustomCall call;
  call.target = "ffi";
  call.api_version = 4;
  call.backend_config_dict = "{scale = 2.0 : f32}";
  call.output_operand_aliases = {{0, 0}};
  call.has_side_effect = true;
  b.custom_call(call, {x}, {x.type()});  // kept although nobody uses it
  EXPECT_EQ(
      body(b, {x}),
      R"(    %0 = "stablehlo.custom_call"(%arg0) <{api_version = 4 : i32, backend_config = {scale = 2.0 : f32}, call_target_name = "ffi", has_side_effect = true, output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]}> : (tensor<2xf32>) -> tensor<2xf32>
)");
}

TEST(CustomCallErrors, NameTheProblem) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {2}));
  CustomCall call;
  EXPECT_INVALID(b.custom_call(call, {x}, {}),
                 "[custom_call] expected a target, got an empty name");
  call.target = "t";
  call.operand_layouts = {{0}};
  EXPECT_INVALID(
      b.custom_call(call, {x}, {x.type()}),
      "[custom_call] expected layouts of both operands and results, got only one of them");
  call.operand_layouts.clear();
  call.output_operand_aliases = {{0, 0}};
  EXPECT_INVALID(b.custom_call(call, {x}, {Type(DType::kS32, {2})}),
                 "[custom_call] expected an alias of tensor<2xi32>, got tensor<2xf32>");
  call.output_operand_aliases.clear();
  call.api_version = 4;
  call.backend_config = "text";
  EXPECT_INVALID(b.custom_call(call, {x}, {}),
                 "[custom_call] expected a dictionary with api version 4, got a string");
}

using CustomCallRun = RunTest;

TEST_F(CustomCallRun, Sharding) {
  Value x = input(f32({2}, {1, 2}));
  CustomCall call;
  call.target = "Sharding";
  call.operand_layouts = {{0}};
  call.result_layouts = {{0}};
  expect_near(run_f32(b.custom_call(call, {x}, {x.type()})[0] + x), {2, 4});
}

}  // namespace
}  // namespace torch_tpu::stablehlo
