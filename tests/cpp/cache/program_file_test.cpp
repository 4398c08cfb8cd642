// Programs as bytes: everything a caller needs comes back, and no bytes crash the reader.
#include "csrc/cache/program_file.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "csrc/cache/bytes.h"
#include "csrc/pjrt/client.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::cache {
namespace {

// Without an executable, as no plugin runs here.
trace::ProgramPtr sample() {
  auto program = c10::make_intrusive<trace::Program>();
  program->name = "aten::nonzero.out";
  trace::Program::Output output;
  output.value_dtype = stablehlo::DType::kS64;
  output.dtype = c10::ScalarType::Long;
  output.sizes = {3, 4};
  output.strides = {4, 1};
  output.base_sizes = {12};
  output.base_strides = {1};
  output.bytes = 96;
  output.write = 2;
  output.extent = trace::Extent{1, {-1, 2}, {1, 0}};
  program->outputs = {output, {}};
  program->outputs[1].defined = false;
  program->numbers = {c10::IValue(), int64_t{5}, 2.5, true};
  program->checks = {{"index {} is out of bounds", ops::ValueCheck::Kind::kValue}};
  program->extra_inputs.resize(1);
  program->draws = 77;
  program->num_counts = 1;
  program->new_bytes = 1000;
  program->pack_sizes[1] = 3;
  program->stored.compile_seconds = 0.25;
  program->text = "module {}";
  return program;
}

trace::ProgramPtr decode_program(std::string_view bytes) {
  return std::get<trace::ProgramPtr>(decode_answer(bytes));
}

TEST(ProgramFile, EverythingComesBack) {
  const auto bytes = encode_program(*sample());
  ASSERT_TRUE(bytes);
  const trace::ProgramPtr program = decode_program(*bytes);
  EXPECT_EQ(program->name, "aten::nonzero.out");
  ASSERT_EQ(program->outputs.size(), 2u);
  const auto& output = program->outputs[0];
  EXPECT_EQ(output.value_dtype, stablehlo::DType::kS64);
  EXPECT_EQ(output.dtype, c10::ScalarType::Long);
  EXPECT_EQ(output.sizes, (trace::Shape{3, 4}));
  EXPECT_EQ(output.strides, (trace::Shape{4, 1}));
  EXPECT_EQ(output.base_sizes, (trace::Shape{12}));
  EXPECT_EQ(output.base_strides, (trace::Shape{1}));
  EXPECT_EQ(output.bytes, 96);
  EXPECT_EQ(output.write, 2);
  ASSERT_TRUE(output.extent);
  EXPECT_EQ(output.extent->count, 1);
  EXPECT_EQ(output.extent->sizes, (trace::Shape{-1, 2}));
  EXPECT_EQ(output.extent->order, (trace::Shape{1, 0}));
  EXPECT_FALSE(program->outputs[1].defined);
  ASSERT_EQ(program->numbers.size(), 4u);
  EXPECT_TRUE(program->numbers[0].isNone());
  EXPECT_EQ(program->numbers[1].toInt(), 5);
  EXPECT_EQ(program->numbers[2].toDouble(), 2.5);
  EXPECT_EQ(program->numbers[3].toBool(), true);
  ASSERT_EQ(program->checks.size(), 1u);
  EXPECT_EQ(program->checks[0].message, "index {} is out of bounds");
  EXPECT_EQ(program->checks[0].kind, ops::ValueCheck::Kind::kValue);
  ASSERT_EQ(program->extra_inputs.size(), 1u);
  EXPECT_FALSE(program->extra_inputs[0]);
  EXPECT_EQ(program->draws, 77u);
  EXPECT_EQ(program->num_counts, 1);
  EXPECT_EQ(program->new_bytes, 1000);
  EXPECT_EQ(program->pack_sizes[1], 3);
  EXPECT_EQ(program->stored.compile_seconds, 0.25);
  EXPECT_EQ(program->text, "module {}");
}

TEST(ProgramFile, ResizesComeBack) {
  trace::Resizes resizes;
  resizes.all = {{1, {2, 3}, {3, 1}}};
  const trace::Answer answer = std::make_shared<const trace::Resizes>(resizes);
  const trace::Answer back = decode_answer(*encode_answer(answer));
  const auto& all = std::get<std::shared_ptr<const trace::Resizes>>(back)->all;
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].tensor, 1);
  EXPECT_EQ(all[0].sizes, (trace::Shape{2, 3}));
  EXPECT_EQ(all[0].strides, (trace::Shape{3, 1}));
}

TEST(ProgramFile, CodeAloneIsNoCall) {
  const std::string code = encode_code(0.5, "bytes");
  EXPECT_EQ(decode_code(code).code, "bytes");
  EXPECT_EQ(decode_code(code).compile_seconds, 0.5);
  EXPECT_THROW(decode_answer(code), BadBytes);
  EXPECT_THROW(decode_code(*encode_program(*sample())), BadBytes);
}

TEST(ProgramFile, RefusalsComeBack) {
  const trace::Answer answer =
      std::make_shared<const trace::Refusal>(trace::Refusal{"aten::x", "not for these arguments"});
  const trace::Answer back = decode_answer(*encode_answer(answer));
  const auto& refusal = *std::get<std::shared_ptr<const trace::Refusal>>(back);
  EXPECT_EQ(refusal.op, "aten::x");
  EXPECT_EQ(refusal.why, "not for these arguments");
}

TEST(ProgramFile, OtherNumbersAreNotStored) {
  auto program = c10::make_intrusive<trace::Program>();
  program->numbers = {c10::IValue("text")};
  EXPECT_FALSE(encode_program(*program));
}

TEST(ProgramFile, ARunnableProgramNeedsCode) {
  auto program = c10::make_intrusive<trace::Program>();
  program->name = "aten::x";
  EXPECT_THROW(decode_program(*encode_program(*program)), BadBytes);
}

// A program whose description is of another one: nothing of it may run.
TEST(ProgramFile, CodeMustGiveWhatTheDescriptionSays) {
  const char* plugin = std::getenv("TORCH_TPU_TEST_PLUGIN");
  if (plugin == nullptr) GTEST_SKIP() << "TORCH_TPU_TEST_PLUGIN is not set";
  setenv("TORCH_TPU_PLUGIN", plugin, 1);
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  auto program = c10::make_intrusive<trace::Program>();
  program->name = "aten::x";
  pjrt::LoadedExecutable made = runtime.client().compile_with(
      "module { func.func @main(%a: tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<2xi64>, "
      "tensor<i64>) { %0 = stablehlo.constant dense<5> : tensor<2xi64> %1 = stablehlo.constant "
      "dense<6> : tensor<i64> return %a, %0, %1 : tensor<3x4xf32>, tensor<2xi64>, tensor<i64> } }",
      runtime.compile_options());
  ASSERT_TRUE(program->code.claim());
  program->code.publish(std::move(made), trace::Code::Origin::kCompiled, 0.1);
  program->num_inputs = 1;
  program->num_counts = 2;
  program->checks = {{"wrong", ops::ValueCheck::Kind::kValue}};
  trace::Program::Output output;
  output.dtype = c10::ScalarType::Float;
  output.sizes = output.base_sizes = {3, 4};
  output.strides = output.base_strides = {4, 1};
  program->outputs = {{}, output};
  program->outputs[0].defined = false;
  const auto fits = [&](auto&& change) {
    const trace::ProgramPtr other = decode_program(*encode_program(*program));
    change(*other);
    try {
      load_executable(other->stored.code, result_types(*other));
      return true;
    } catch (const BadBytes&) {
      return false;
    }
  };
  EXPECT_TRUE(fits([](trace::Program&) {}));
  EXPECT_TRUE(fits([](trace::Program& p) { p.outputs[1].sizes = {4, 3}; }));  // a view of it
  EXPECT_FALSE(fits([](trace::Program& p) { p.outputs[1].base_sizes = {4, 3}; }));
  EXPECT_FALSE(fits([](trace::Program& p) { p.outputs[1].base_sizes = {12}; }));
  EXPECT_FALSE(fits([](trace::Program& p) { p.outputs[1].base_sizes = {1 << 20, 4}; }));
  EXPECT_FALSE(fits([](trace::Program& p) { p.outputs[1].value_dtype = stablehlo::DType::kS32; }));
  EXPECT_FALSE(fits([](trace::Program& p) { p.outputs[0].defined = true; }));
  EXPECT_FALSE(fits([](trace::Program& p) { p.num_counts = 3; }));
  EXPECT_FALSE(fits([](trace::Program& p) { p.checks.clear(); }));
}

// Behind the checksum this cannot happen; the reader must hold all the same.
TEST(ProgramFile, NoBytesCrashTheReader) {
  const std::string good = *encode_program(*sample());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(decode_answer(good.substr(0, size)), BadBytes) << size;
  }
  EXPECT_THROW(decode_answer(good + "x"), BadBytes);
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      try {
        decode_answer(bad);
      } catch (const BadBytes&) {
      }
    }
  }
}

}  // namespace
}  // namespace torch_tpu::cache
