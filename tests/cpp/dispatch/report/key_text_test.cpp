// Keys put in words: why a call needed a program of its own.
#include "csrc/dispatch/report/key_text.h"

#include "tests/cpp/dispatch/test_dispatch.h"

namespace torch_tpu::dispatch {
namespace {

using testing::key_of;
using testing::on_device;

class KeyTextTest : public testing::DispatchTest {
 protected:
  static at::Tensor zeros(c10::IntArrayRef sizes) {
    return on_device(std::vector<float>(static_cast<size_t>(c10::multiply_integers(sizes)), 0),
                     sizes);
  }
  static std::string difference(const char* op, const std::vector<c10::IValue>& before,
                                const std::vector<c10::IValue>& after) {
    const auto fields = [&](const std::vector<c10::IValue>& args) {
      return key_fields(find_op(op), key_of(op, args));
    };
    const auto found = first_difference(fields(before), fields(after));
    return found ? found->text() : "none";
  }
};

TEST_F(KeyTextTest, NamesTheFirstThingThatDiffers) {
  EXPECT_EQ(difference("aten::relu", {zeros({2, 128})}, {zeros({2, 135})}),
            "input[0].shape[1]: 128 → 135");
  EXPECT_EQ(difference("aten::relu", {zeros({2, 128})}, {zeros({2, 128})}), "none");
}

TEST_F(KeyTextTest, StructuralArgumentsHaveTheirNames) {
  const at::Tensor x = zeros({2, 3});
  EXPECT_EQ(difference("aten::_softmax", {x, 0, false}, {x, 1, false}), "dim: 0 → 1");
  const c10::List<int64_t> rows({0}), columns({1});
  EXPECT_EQ(difference("aten::sum.dim_IntList", {x, rows, true, c10::IValue()},
                       {x, columns, true, c10::IValue()}),
            "dim[0]: 0 → 1");
}

TEST_F(KeyTextTest, AKeyOfAnotherOpIsNotRead) {
  const at::Tensor x = zeros({2});
  EXPECT_TRUE(key_fields(find_op("aten::relu"), key_of("aten::neg", {x})).empty());
  std::vector<uint64_t> cut = key_of("aten::relu", {x});
  cut.pop_back();
  EXPECT_TRUE(key_fields(find_op("aten::relu"), cut).empty());
}

// Or explain() would be silent about such calls.
TEST_F(KeyTextTest, EveryOpThatTakesOneTensorHasAReadableKey) {
  int read = 0;
  for (const auto& [form, entry] : op_forms()) {
    const Op& op = find_op("aten::" + form);
    if (op.args.size() != 1 || op.args[0].kind != ArgKind::kTensor) continue;
    const std::vector<c10::IValue> args{zeros({2, 2})};
    EXPECT_FALSE(key_fields(op, key_of(op.name.c_str(), args)).empty()) << form;
    ++read;
  }
  EXPECT_GT(read, 50);
}

}  // namespace
}  // namespace torch_tpu::dispatch
