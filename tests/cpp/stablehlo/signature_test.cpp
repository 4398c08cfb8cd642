// What a module takes and gives, read from its text.
#include "csrc/stablehlo/signature.h"

#include <gtest/gtest.h>

#include "csrc/stablehlo/builder.h"

namespace torch_tpu::stablehlo {
namespace {

std::string error_of(const std::string& text) {
  try {
    main_signature(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Signature, OfWhatTheBuilderWrites) {
  Builder b;
  std::vector<Type> types;
  for (int i = 0; i <= static_cast<int>(DType::kC128); ++i) {
    types.emplace_back(static_cast<DType>(i), Dims(static_cast<size_t>(i % 4), i + 1));
  }
  Values values;
  for (const Type& type : types) values.push_back(b.parameter(type));
  b.alias(0, 0);
  const Signature found = main_signature(b.finish(values, "func.func @main"));
  EXPECT_EQ(found.arguments, types);
  EXPECT_EQ(found.results, types);
}

TEST(Signature, OfWhatOthersWrite) {
  const Signature found = main_signature(R"mlir(
    // func.func @main(%arg0: tensor<9xf32>)
    #loc1 = loc("func.func @main(%arg0: tensor<8xf32>)")
    module @m attributes {text = "\"func.func @main("} {
      func.func private @inner(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }
      func.func public @"main" ( // why not here
          %x : tensor<4x0x3xcomplex<f32>> {a.b = "}", c = {d = [1, 2]}} loc("here") ,
          %y_1.2: tensor<i1> loc(#loc1)) -> tensor<7xui8> {
        return
      }
    })mlir");
  EXPECT_EQ(found.arguments,
            (std::vector<Type>{Type(DType::kC64, {4, 0, 3}), Type(DType::kBool, {})}));
  EXPECT_EQ(found.results, std::vector<Type>{Type(DType::kU8, {7})});
  const Signature none = main_signature("func.func @main() { return }");
  EXPECT_TRUE(none.arguments.empty());
  EXPECT_TRUE(none.results.empty());
  EXPECT_TRUE(main_signature("func.func @main() -> () { return }").results.empty());
}

TEST(Signature, WhatItDoesNotKnowItRefuses) {
  for (const char* type :
       {"tensor<?xf32>", "tensor<4xf32, #x>", "tensor<4xi3>", "tensor<4x>", "tensor<*xf32>",
        "tensor<4", "tensor<", "!stablehlo.token", "index", "", "tensor<99999999999999999999xf32>",
        "tensor<-1xf32>", "tensor<4 x f32>"}) {
    const std::string text = std::string("func.func @main(%a: ") + type + ") -> () {}";
    EXPECT_NE(error_of(text).find("@main cannot be read"), std::string::npos) << type;
    EXPECT_NE(error_of(std::string("func.func @main() -> ") + type), "") << type;
  }
  const std::string good = "func.func @main(%a: tensor<2xf32> {x = \"y\"}) -> (tensor<2xf32>)";
  EXPECT_EQ(error_of(good), "");
  EXPECT_NE(error_of(good + good).find("there are two"), std::string::npos);
  EXPECT_NE(error_of("module { }").find("there is none"), std::string::npos);
  EXPECT_NE(error_of("func.func @main2() -> ()").find("there is none"), std::string::npos);
  for (size_t size = 0; size < good.size(); ++size) error_of(good.substr(0, size));  // no crash
}

}  // namespace
}  // namespace torch_tpu::stablehlo
