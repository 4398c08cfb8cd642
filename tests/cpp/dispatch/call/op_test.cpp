// Schemas digested: what each argument of an op means for its programs, and which forms of an op an
// entry serves.
#include "csrc/dispatch/call/op.h"

#include <algorithm>
#include <set>

#include "tests/cpp/dispatch/test_dispatch.h"

namespace torch_tpu::dispatch {
namespace {

class OpTest : public testing::DispatchTest {
 protected:
  static const ArgPlan& arg(const Op& op, std::string_view name) {
    const auto at = std::find_if(op.args.begin(), op.args.end(),
                                 [&](const ArgPlan& plan) { return plan.name == name; });
    TORCH_CHECK(at != op.args.end(), op.name, " has no argument ", std::string(name));
    return *at;
  }
};

TEST_F(OpTest, ANumberIsARuntimeValueWithItsDefault) {
  const Op& op = find_op("aten::add.Tensor");
  EXPECT_EQ(arg(op, "self").kind, ArgKind::kTensor);
  EXPECT_FALSE(arg(op, "self").written);
  EXPECT_EQ(arg(op, "alpha").kind, ArgKind::kScalar);
  EXPECT_EQ(arg(op, "alpha").default_value, 1.0);
  EXPECT_FALSE(arg(op, "alpha").keyed);
  EXPECT_FALSE(op.writes);
  EXPECT_EQ(op.returns, std::vector<int>{-1});
}

TEST_F(OpTest, AnInPlaceFormReadsAndWritesItsArgument) {
  const Op& op = find_op("aten::add_.Tensor");
  EXPECT_TRUE(arg(op, "self").written);
  EXPECT_TRUE(arg(op, "self").read);
  EXPECT_FALSE(arg(op, "other").written);
  EXPECT_EQ(op.returns, std::vector<int>{0});
  EXPECT_TRUE(op.extra_writes.empty());
  EXPECT_EQ(op.entry, find_op("aten::add.Tensor").entry);
}

TEST_F(OpTest, AnOutFormDoesNotReadWhatItWrites) {
  const Op& op = find_op("aten::add.out");
  EXPECT_TRUE(op.out_form);
  EXPECT_TRUE(arg(op, "out").written);
  EXPECT_FALSE(arg(op, "out").read);
  EXPECT_FALSE(op.copies_out);
  EXPECT_TRUE(find_op("aten::nonzero.out").copies_out);  // nobody knows the size before
}

TEST_F(OpTest, WhatOverwritesReadsNothing) {
  EXPECT_FALSE(arg(find_op("aten::fill_.Scalar"), "self").read);
  EXPECT_FALSE(arg(find_op("aten::uniform_"), "self").read);
  EXPECT_TRUE(arg(find_op("aten::relu_"), "self").read);
}

TEST_F(OpTest, AnEntryKnowsOfWritesThatTheSchemaHides) {
  const Op& op = find_op("aten::native_batch_norm");
  EXPECT_TRUE(arg(op, "running_mean").written);
  EXPECT_TRUE(arg(op, "running_var").written);
  EXPECT_EQ(op.returns, (std::vector<int>{-1, -1, -1}));
  std::set<std::string> extra;
  for (int i : op.extra_writes) extra.insert(op.args[static_cast<size_t>(i)].name);
  EXPECT_EQ(extra, (std::set<std::string>{"running_mean", "running_var"}));
}

TEST_F(OpTest, AFactoryHasADeviceAndKeyedNumbers) {
  const Op& op = find_op("aten::arange.start_step");
  EXPECT_TRUE(arg(op, "end").keyed);
  EXPECT_EQ(arg(op, "dtype").kind, ArgKind::kStructural);
  for (const char* name : {"layout", "device", "pin_memory"}) {
    EXPECT_EQ(arg(op, name).kind, ArgKind::kIgnored) << name;
  }
  EXPECT_EQ(op.args.at(static_cast<size_t>(op.device_arg)).name, "device");
}

TEST_F(OpTest, ListsAndGeneratorsHaveTheirKinds) {
  EXPECT_EQ(arg(find_op("aten::cat"), "tensors").kind, ArgKind::kTensorList);
  EXPECT_EQ(arg(find_op("aten::index.Tensor"), "indices").kind, ArgKind::kTensorList);
  EXPECT_EQ(arg(find_op("aten::_foreach_mul.ScalarList"), "scalars").kind, ArgKind::kScalarList);
  EXPECT_EQ(arg(find_op("aten::sum.dim_IntList"), "dim").kind, ArgKind::kStructural);
  const Op& normal = find_op("aten::normal_");
  EXPECT_EQ(normal.args.at(static_cast<size_t>(normal.generator_arg)).kind, ArgKind::kGenerator);
  const Op& foreach_add = find_op("aten::_foreach_add.Scalar");
  EXPECT_EQ(foreach_add.return_is_list, std::vector<bool>{true});
}

TEST_F(OpTest, EveryFormIsFoundByItsName) {
  std::set<std::string> names;
  for (const auto& [form, entry] : op_forms()) {
    EXPECT_TRUE(names.insert(form).second) << form << " is there twice";
    const Op& op = find_op("aten::" + form);
    EXPECT_EQ(op.entry->name, entry);
    EXPECT_EQ(op.args.size(), op.handle.schema().arguments().size());
    EXPECT_EQ(op.returns.size(), op.handle.schema().returns().size());
  }
  EXPECT_GT(names.size(), ops::table().size());
  EXPECT_THROW(find_op("aten::no_such_op"), c10::Error);
}

// Programs on disk are found by it.
TEST_F(OpTest, AnIdIsAFunctionOfTheName) {
  std::set<uint64_t> ids;
  for (const auto& [form, entry] : op_forms()) ids.insert(find_op("aten::" + form).id);
  EXPECT_EQ(ids.size(), op_forms().size());
  const Op& op = find_op("aten::add.Tensor");
  EXPECT_EQ(Op(op.handle, op.entry).id, op.id);
  const ops::Entry decomposed{.name = "add.Tensor"};
  EXPECT_NE(Op(op.handle, &decomposed).id, op.id);
}

}  // namespace
}  // namespace torch_tpu::dispatch
