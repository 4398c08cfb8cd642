// What PyTorch's Meta kernels say of a call, and its errors.
#include "csrc/dispatch/program/infer.h"

#include "tests/cpp/dispatch/test_dispatch.h"

namespace torch_tpu::dispatch {
namespace {

using testing::on_device;

class InferTest : public testing::DispatchTest {
 protected:
  static at::Tensor zeros(c10::IntArrayRef sizes) {
    return on_device(std::vector<float>(static_cast<size_t>(c10::multiply_integers(sizes)), 0),
                     sizes);
  }
  static Inferred ask(const char* op, const std::vector<c10::IValue>& args) {
    return infer(Frame(find_op(op), args.data()));
  }
};

TEST_F(InferTest, ResultsHaveTheSizesAndDtypesOfTheCpus) {
  const Inferred sum = ask("aten::add.Tensor", {zeros({2, 1}), zeros({3}), 1});
  ASSERT_TRUE(sum.known);
  ASSERT_EQ(sum.results.size(), 1u);
  EXPECT_EQ(sum.results[0].sizes(), (c10::IntArrayRef{2, 3}));
  EXPECT_EQ(sum.results[0].scalar_type(), at::kFloat);
  EXPECT_TRUE(sum.results[0].is_meta());
  EXPECT_EQ(ask("aten::gt.Scalar", {zeros({2}), 0}).results.at(0).scalar_type(), at::kBool);
}

TEST_F(InferTest, StridesAreThoseOfTheCpus) {
  const at::Tensor turned = zeros({3, 2}).t();
  EXPECT_EQ(ask("aten::neg", {turned}).results.at(0).strides(), (c10::IntArrayRef{1, 2}));
}

TEST_F(InferTest, ABadCallRaisesWhatTheCpuDoes) {
  EXPECT_ERROR(ask("aten::add.Tensor", {zeros({2}), zeros({3}), 1}), c10::Error,
               "The size of tensor a (2) must match the size of tensor b (3)");
  EXPECT_ERROR(ask("aten::mm", {zeros({2, 3}), zeros({2, 3})}), c10::Error,
               "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)");
}

TEST_F(InferTest, AnOutTensorOfAnotherSizeIsResized) {
  const Inferred sum = ask("aten::add.out", {zeros({4}), zeros({4}), 1, zeros({0})});
  EXPECT_EQ(sum.results.at(0).sizes(), (c10::IntArrayRef{4}));
}

}  // namespace
}  // namespace torch_tpu::dispatch
