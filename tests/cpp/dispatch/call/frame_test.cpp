// Keys: two calls have the same one exactly when one program serves both.
#include "csrc/dispatch/call/frame.h"

#include <ATen/Context.h>
#include <ATen/ops/scalar_tensor.h>

#include "tests/cpp/dispatch/test_dispatch.h"

namespace torch_tpu::dispatch {
namespace {

using testing::key_of;
using testing::on_device;

class FrameTest : public testing::DispatchTest {
 protected:
  static at::Tensor ones(c10::IntArrayRef sizes, int device = 0) {
    return on_device(std::vector<float>(static_cast<size_t>(c10::multiply_integers(sizes)), 1),
                     sizes, device);
  }
  static std::vector<uint64_t> add(const at::Tensor& a, const at::Tensor& b,
                                   const c10::Scalar& alpha = 1) {
    return key_of("aten::add.Tensor", {a, b, alpha});
  }
};

TEST_F(FrameTest, CallsThatDifferOnlyInTheirDataShareAProgram) {
  EXPECT_EQ(add(ones({2, 3}), ones({2, 3})), add(ones({2, 3}), ones({2, 3})));
  EXPECT_EQ(add(ones({2, 3}), ones({2, 3})), add(ones({2, 3}, 1), ones({2, 3}, 1)));
}

TEST_F(FrameTest, SizesStridesAndDtypesMakeAnotherProgram) {
  const at::Tensor x = ones({2, 3});
  const auto key = add(x, x);
  EXPECT_NE(key, add(ones({3, 2}), ones({3, 2})));
  EXPECT_NE(key, add(ones({2, 3, 1}), x));
  EXPECT_NE(add(ones({2, 2}), ones({2, 2})), add(ones({2, 2}).t(), ones({2, 2})));
  const at::Tensor whole = device::make_tensor({2, 3}, {3, 1}, at::kInt, 0);
  EXPECT_NE(add(whole, x), add(device::make_tensor({2, 3}, {3, 1}, at::kShort, 0), x));
}

TEST_F(FrameTest, AViewIsToldFromItsBaseAndByItsOffset) {
  const at::Tensor base = ones({4, 3});
  const at::Tensor x = ones({3});
  const auto row = [&](int64_t i) { return base.as_strided({3}, {1}, 3 * i); };
  EXPECT_NE(add(x, x), add(row(0), x));
  EXPECT_NE(add(row(0), x), add(row(1), x));
  EXPECT_EQ(add(row(1), x), add(row(1), x));
}

TEST_F(FrameTest, MemoryThatNobodyWroteIsNotRead) {
  const at::Tensor empty = device::make_tensor({3}, {1}, at::kFloat, 0);
  EXPECT_NE(add(empty, ones({3})), add(ones({3}), ones({3})));
}

TEST_F(FrameTest, ANumberIsNoPartOfTheKeyButItsTypeIs) {
  const at::Tensor x = ones({3});
  EXPECT_EQ(add(x, x, 0.25), add(x, x, 0.75));
  EXPECT_NE(add(x, x, 2), add(x, x, 2.5));
  EXPECT_NE(add(x, x, 1), add(x, x, 2));  // the default has a program without it
}

TEST_F(FrameTest, ANumberThatTheEntryKeysIs) {
  const auto arange = [](int64_t end) {
    return key_of("aten::arange",
                  {end, c10::IValue(), c10::IValue(), device::make_device(0), c10::IValue()});
  };
  EXPECT_EQ(arange(5), arange(5));
  EXPECT_NE(arange(5), arange(6));
}

TEST_F(FrameTest, ASpecialValueHasAProgramOfItsOwn) {
  const auto pow = [](const c10::Scalar& exponent) {
    return key_of("aten::pow.Tensor_Scalar", {ones({3}), exponent});
  };
  EXPECT_EQ(pow(2.25), pow(2.75));
  EXPECT_NE(pow(2.0), pow(2.25));
}

TEST_F(FrameTest, AListOfOneNumberAgainAndAgainTravelsOnce) {
  const at::Tensor x = ones({3});
  const c10::List<at::Tensor> tensors({x, x});
  const auto frame = [&](double first, double second) {
    c10::List<c10::IValue> scalars(c10::NumberType::get());
    scalars.push_back(first);
    scalars.push_back(second);
    const std::vector<c10::IValue> args{tensors, c10::IValue(scalars)};
    const Frame made(find_op("aten::_foreach_mul.ScalarList"), args.data());
    return std::pair(made.scalars.size(),
                     std::vector<uint64_t>(made.key.data(), made.key.data() + made.key.size()));
  };
  EXPECT_EQ(frame(0.5, 0.5).first, 1u);
  EXPECT_EQ(frame(0.5, 0.7).first, 2u);
  EXPECT_NE(frame(0.5, 0.5).second, frame(0.5, 0.7).second);
  EXPECT_EQ(frame(0.1, 0.1).second, frame(0.2, 0.2).second);
}

TEST_F(FrameTest, AScalarOfTheCpuIsARuntimeNumber) {
  const at::Tensor x = ones({3});
  const std::vector<c10::IValue> args{x, at::scalar_tensor(2.5), 1};
  const Frame frame(find_op("aten::add.Tensor"), args.data());
  ASSERT_EQ(frame.scalars.size(), 1u);
  EXPECT_EQ(frame.scalars[0].real, 2.5);
  EXPECT_EQ(frame.carrier(frame.scalars[0]), trace::Carrier::kF32);
}

TEST_F(FrameTest, DevicesDoNotMix) {
  EXPECT_ERROR(add(ones({3}), ones({3}, 1)), c10::Error,
               "found at least two devices, tpu:0 and tpu:1!");
  EXPECT_ERROR(add(ones({3}), at::scalar_tensor(1.0).expand({3})), c10::Error,
               "found at least two devices, tpu:0 and cpu!");
}

TEST_F(FrameTest, SettingsThatProgramsDependOnAreInTheKey) {
  const at::Tensor x = ones({3, 3});
  const auto before = key_of("aten::mm", {x, x});
  at::globalContext().setFloat32MatmulPrecision("medium");
  const auto medium = key_of("aten::mm", {x, x});
  at::globalContext().setFloat32MatmulPrecision("highest");
  EXPECT_NE(medium, before);
  EXPECT_EQ(key_of("aten::mm", {x, x}), before);
}

}  // namespace
}  // namespace torch_tpu::dispatch
