// The op table as a whole: that each entry fits the schema it names. What an entry says of an
// argument that the schema does not have would silently mean nothing.
#include "csrc/ops/table.h"

#include <algorithm>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <gtest/gtest.h>

namespace torch_tpu::ops {
namespace {

const Entry* find(std::string_view name) {
  const auto at = std::lower_bound(table().begin(), table().end(), name,
                                   [](const Entry& e, std::string_view n) { return e.name < n; });
  return at != table().end() && at->name == name ? &*at : nullptr;
}

// Null where this torch does not have the op.
const c10::FunctionSchema* schema_of(const Entry& entry) {
  const std::string full = "aten::" + std::string(entry.name);
  const size_t dot = full.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchema(
      {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
  return handle ? &handle->schema() : nullptr;
}

const c10::Argument* argument(const c10::FunctionSchema& schema, std::string_view name) {
  for (const c10::Argument& one : schema.arguments()) {
    if (one.name() == name) return &one;
  }
  return nullptr;
}

bool has_number(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const auto& one) {
    const std::string type = one.real_type()->str();
    return type.find("Scalar") != std::string::npos || type.find("float") != std::string::npos;
  });
}

TEST(Table, IsSortedWithoutDuplicates) {
  ASSERT_GT(table().size(), 600u);
  for (size_t i = 1; i < table().size(); ++i) {
    EXPECT_LT(table()[i - 1].name, table()[i].name);
  }
}

TEST(Table, EveryEntryIsFoundByItsName) {
  for (const Entry& entry : table()) EXPECT_EQ(find(entry.name), &entry) << entry.name;
  EXPECT_EQ(find("add"), nullptr);  // only its overloads are ops
  EXPECT_EQ(find("no_such_op"), nullptr);
}

TEST(Table, EveryEntryCanBeLowered) {
  for (const Entry& entry : table()) {
    EXPECT_NE(entry.lower, nullptr) << entry.name;
    EXPECT_TRUE(entry.overlap.has_value()) << entry.name;
    EXPECT_EQ(entry.name.find("::"), std::string_view::npos) << entry.name;
  }
}

TEST(Table, NamesArePyTorchs) {
  size_t known = 0;
  for (const Entry& entry : table()) known += schema_of(entry) != nullptr;
  // A few belong to other versions of torch; a misspelt family would be more.
  EXPECT_GE(known + 10, table().size());
}

TEST(Table, WhatAnEntrySaysOfAnArgumentIsSaidOfOne) {
  for (const Entry& entry : table()) {
    const c10::FunctionSchema* schema = schema_of(entry);
    if (schema == nullptr) continue;
    SCOPED_TRACE(entry.name);
    for (std::string_view name : entry.writes) {
      const c10::Argument* written = argument(*schema, name);
      ASSERT_NE(written, nullptr) << name;
      EXPECT_NE(written->real_type()->str().find("Tensor"), std::string::npos) << name;
    }
    for (std::string_view name : entry.keyed) EXPECT_NE(argument(*schema, name), nullptr) << name;
    if (!entry.special.empty()) EXPECT_TRUE(has_number(*schema));
    if (entry.expands_masks) EXPECT_NE(argument(*schema, "indices"), nullptr);
  }
}

TEST(Table, WhatDrawsByAGeneratorIsRandom) {
  for (const Entry& entry : table()) {
    const c10::FunctionSchema* schema = schema_of(entry);
    if (schema == nullptr || argument(*schema, "generator") == nullptr) continue;
    EXPECT_TRUE(entry.random) << entry.name;
  }
}

TEST(Table, AnOpThatWritesByIndexRefusesAliases) {
  EXPECT_EQ(find("index_put")->overlap, Overlap::kNone);
  EXPECT_EQ(find("scatter.src")->overlap, Overlap::kNone);
  EXPECT_EQ(find("add.Tensor")->overlap, Overlap::kSameOnly);
  EXPECT_EQ(find("mm")->overlap, Overlap::kFine);
}

}  // namespace
}  // namespace torch_tpu::ops
