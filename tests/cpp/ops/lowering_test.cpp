// Lowerings of one op of each kind: their StableHLO, and what it gives when it runs. All ops
// against PyTorch's results are in tests/python/ops and tests/conformance.
#include "tests/cpp/ops/lowering_test.h"

#include <thread>

#include "csrc/ops/random.h"
#include "csrc/ops/target.h"

namespace torch_tpu::ops {
namespace {

using stablehlo::body;
using stablehlo::expect_near;
using stablehlo::f32;
using stablehlo::f32_range;

const Type kF32x3(DType::kF32, {3});

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_F(LoweringTest, AddingWithTheDefaultAlphaIsOneAddition) {
  give_tensor("self", f32({3}, {1, 2, 3}));
  give_tensor("other", f32({3}, {10, 20, 30}));
  give_known("alpha", 1, c10::ScalarType::Long);
  const std::string text = body(b, lower("add.Tensor", {kF32x3}));
  EXPECT_EQ(count(text, "stablehlo."), 1u) << text;
  EXPECT_EQ(count(text, "stablehlo.add"), 1u) << text;
}

TEST_F(LoweringTest, ARuntimeAlphaIsAnInput) {
  give_tensor("self", f32({3}, {1, 2, 3}));
  give_tensor("other", f32({3}, {10, 20, 30}));
  give_runtime("alpha", 0.5f);
  expect_near(run_f32(lower("add.Tensor", {kF32x3})[0]), {6, 12, 18});
}

TEST_F(LoweringTest, OperandsAreBroadcastAndPromoted) {
  give_tensor("self", stablehlo::s32({2, 1}, {1, 2}));
  give_tensor("other", f32({3}, {0.5f, 1.5f, 2.5f}));
  const Value product = lower("mul.Tensor", {Type(DType::kF32, {2, 3})})[0];
  EXPECT_EQ(product.type(), Type(DType::kF32, {2, 3}));
  expect_near(run_f32(product), {0.5f, 1.5f, 2.5f, 1, 3, 5});
}

TEST_F(LoweringTest, AMatrixProductIsOneDot) {
  give_tensor("self", f32_range({2, 3}));
  give_tensor("mat2", f32_range({3, 2}));
  const Values results = lower("mm", {Type(DType::kF32, {2, 2})});
  expect_near(run_f32(results[0]), {10, 13, 28, 40});
}

TEST_F(LoweringTest, ASumReducesTheDimsItIsGiven) {
  give_tensor("self", f32_range({2, 3}));
  give("dim", std::vector<int64_t>{-1});
  give("keepdim", true);
  give_none("dtype");
  expect_near(run_f32(lower("sum.dim_IntList", {Type(DType::kF32, {2, 1})})[0]), {3, 12});
}

TEST_F(LoweringTest, AnIndexOutOfRangeIsReportedByAFlag) {
  give_tensor("self", f32_range({4, 2}));
  give("dim", int64_t{0});
  give_tensor("index", stablehlo::array<int64_t>(DType::kS64, {2}, {1, 7}));
  Values results = lower("index_select", {Type(DType::kF32, {2, 2})});
  ASSERT_EQ(source().checks.size(), 1u);
  EXPECT_EQ(source().checks[0].what.message, "index out of range in self");
  EXPECT_EQ(source().checks[0].what.kind, ValueCheck::Kind::kIndex);
  const auto out = run({results[0], source().checks[0].flag});
  EXPECT_EQ(out[1].as<int64_t>(), std::vector<int64_t>{7});
}

TEST_F(LoweringTest, IndicesInRangeRaiseNoFlag) {
  give_tensor("self", f32_range({4, 2}));
  give("dim", int64_t{0});
  give_tensor("index", stablehlo::array<int64_t>(DType::kS64, {2}, {3, 0}));
  Values results = lower("index_select", {Type(DType::kF32, {2, 2})});
  const auto out = run({results[0], source().checks.at(0).flag});
  expect_near(out[0].as<float>(), {6, 7, 0, 1});
  EXPECT_EQ(out[1].as<int64_t>(), std::vector<int64_t>{kNoViolation});
}

TEST_F(LoweringTest, NonzeroGivesItsCountAndTheColumnsOneAfterTheOther) {
  give_tensor("self", f32({2, 3}, {0, 5, 0, 6, 0, 7}));
  const Values results = lower("nonzero", {Type(DType::kS64, {0, 2})});
  ASSERT_EQ(source().counted.size(), 1u);
  const CountedResult& counted = source().counted[0];
  EXPECT_EQ(counted.sizes, (Dims{-1, 2}));
  EXPECT_EQ(counted.order, (Dims{1, 0}));
  const auto out = run({results[0], counted.count});
  EXPECT_EQ(out[1].as<int64_t>(), std::vector<int64_t>{3});
  std::vector<int64_t> hits = out[0].as<int64_t>();
  ASSERT_EQ(hits.size(), 12u);  // room for all
  hits.resize(6);
  EXPECT_EQ(hits, (std::vector<int64_t>{0, 1, 1, 1, 0, 2}));
}

class RandomTest : public LoweringTest {
 protected:
  std::vector<float> draw(uint64_t seed, uint64_t offset) {
    give_tensor("self", f32_range({64}));
    give_known("from", 0, c10::ScalarType::Double);
    give_known("to", 1, c10::ScalarType::Double);
    give_none("generator");
    give_state(seed, offset);
    return run_f32(lower("uniform", {Type(DType::kF32, {64})})[0]);
  }
};

TEST_F(RandomTest, NumbersAreInRangeAndDiffer) {
  const std::vector<float> numbers = draw(7, 0);
  EXPECT_GE(*std::min_element(numbers.begin(), numbers.end()), 0.0f);
  EXPECT_LT(*std::max_element(numbers.begin(), numbers.end()), 1.0f);
  EXPECT_NE(numbers[0], numbers[1]);
}

TEST_F(RandomTest, AnElementIsAFunctionOfSeedAndOffset) {
  give_state(7, 16);
  const Value tail = random_uniform01(b, source().rng_state, {48}, DType::kF32);
  give_state(7, 0);
  const Value all = random_uniform01(b, source().rng_state, {64}, DType::kF32);
  const auto out = run({tail, all});
  const std::vector<float> numbers = out[1].as<float>();
  EXPECT_EQ(out[0].as<float>(), std::vector<float>(numbers.begin() + 16, numbers.end()));
}

TEST(DTypes, EveryOneHasATorchDtypeAndBack) {
  for (int i = 0; i <= static_cast<int>(DType::kC32); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(to_dtype(to_scalar_type(dtype)), dtype);
    EXPECT_EQ(c10::elementSize(to_scalar_type(dtype)), stablehlo::dtype_bytes(dtype));
  }
  EXPECT_THROW(to_dtype(c10::ScalarType::QInt8), c10::TypeError);
}

TEST(Targets, AScopeHoldsForItsThreadAndEnds) {
  const Compiler before = target().compiler;
  {
    Target cuda;
    cuda.compiler = Compiler::kCuda;
    const TargetScope scope(cuda);
    EXPECT_EQ(target().compiler, Compiler::kCuda);
    Compiler elsewhere = Compiler::kCuda;
    std::thread([&] { elsewhere = target().compiler; }).join();
    EXPECT_EQ(elsewhere, Compiler::kTpu);
  }
  EXPECT_EQ(target().compiler, before);
}

}  // namespace
}  // namespace torch_tpu::ops
