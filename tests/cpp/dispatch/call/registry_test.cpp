// The registry of ops: users define ops (remember_op) while other threads look some up. Under
// ThreadSanitizer a table that both touch without a lock is an error.
#include <atomic>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "csrc/dispatch/call/op.h"

namespace torch_tpu::dispatch {
namespace {

// PyTorch's ops that the table does not serve, under their own schemas.
std::vector<std::unique_ptr<Op>> other_ops(size_t count) {
  static const ops::Entry entry = {.name = "other"};
  std::vector<std::unique_ptr<Op>> out;
  std::set<std::string> served;
  for (const auto& [name, entry_name] : op_forms()) served.insert("aten::" + name);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto handle = dispatcher.findSchema(name);
    if (!handle || served.contains(full_name(*handle))) continue;
    out.push_back(std::make_unique<Op>(*handle, &entry));
    if (out.size() == count) break;
  }
  return out;
}

TEST(Registry, OpsAreFoundWhileOthersAreAdded) {
  register_ops();
  // Never freed: the registry keeps them.
  static const auto* const others = new std::vector<std::unique_ptr<Op>>(other_ops(200));
  ASSERT_EQ(others->size(), 200U);
  std::atomic<bool> done = false;
  std::atomic<int> wrong = 0;
  const Op* const add = &find_op("aten::add.Tensor");
  remember_op(*others->front());
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!done) {
        wrong += &find_op("aten::add.Tensor") != add;
        wrong += &find_op(others->front()->name) != others->front().get();
      }
    });
  }
  for (const auto& op : *others) remember_op(*op);
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  for (const auto& op : *others) EXPECT_EQ(&find_op(op->name), op.get());
}

TEST(Registry, AnOpDefinedAnewTakesThePlaceOfTheOld) {
  register_ops();
  static const ops::Entry entry = {.name = "other"};
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::size", "int");
  static const auto* const first = new Op(handle, &entry);
  static const auto* const second = new Op(handle, &entry);
  remember_op(*first);
  EXPECT_EQ(&find_op("aten::size.int"), first);
  remember_op(*second);
  EXPECT_EQ(&find_op("aten::size.int"), second);
}

TEST(Registry, TheTableIsNotReplaced) {
  register_ops();
  EXPECT_THROW(remember_op(find_op("aten::add.Tensor")), c10::Error);
}

}  // namespace
}  // namespace torch_tpu::dispatch
