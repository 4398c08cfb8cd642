#include "csrc/dispatch/call/op.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <ATen/core/function_schema.h>
#include <torch/library.h>

#include "csrc/base/hash.h"
#include "csrc/dispatch/call/kernel.h"

namespace torch_tpu::dispatch {
namespace {

using c10::TypeKind;

c10::TypePtr strip_optional(c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>()) return optional->getElementType();
  return type;
}

ArgKind kind_of(const c10::Argument& argument) {
  static const char* const kIgnored[] = {"device", "layout", "pin_memory", "non_blocking"};
  for (const char* name : kIgnored) {
    if (argument.name() == name) return ArgKind::kIgnored;
  }
  const c10::TypePtr type = strip_optional(argument.real_type());
  switch (type->kind()) {
    case TypeKind::TensorType:
      return ArgKind::kTensor;
    case TypeKind::NumberType:
    case TypeKind::FloatType:
      return ArgKind::kScalar;
    case TypeKind::GeneratorType:
      return ArgKind::kGenerator;
    case TypeKind::ListType: {
      const c10::TypePtr element = strip_optional(type->castRaw<c10::ListType>()->getElementType());
      if (element->kind() == TypeKind::TensorType) return ArgKind::kTensorList;
      if (element->kind() == TypeKind::NumberType) return ArgKind::kScalarList;
      return ArgKind::kStructural;
    }
    default:
      return ArgKind::kStructural;
  }
}

std::optional<base::Number> number_of(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool();
  return std::nullopt;
}

// The same in every process, as programs on disk are found by it. An op may be there twice: with a
// lowering, and decomposed for the arguments that it refuses.
uint64_t stable_id(const std::string& name, bool lowered) {
  const std::string text = name + (lowered ? "" : " decomposed");
  const uint64_t id = base::hash_bytes(text);
  static std::mutex mutex;
  static auto* known = new std::unordered_map<uint64_t, std::string>();
  const std::lock_guard lock(mutex);
  const std::string& owner = known->try_emplace(id, text).first->second;
  TORCH_INTERNAL_ASSERT(owner == text, "the ids of ", owner, " and ", text, " are equal");
  return id;
}

bool lists(const std::vector<std::string_view>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string full_name(const c10::OperatorHandle& handle) {
  const c10::OperatorName& name = handle.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

Op::Op(c10::OperatorHandle handle_in, const ops::Entry* entry_in)
    : handle(std::move(handle_in)), entry(entry_in) {
  const c10::FunctionSchema& schema = handle.schema();
  name = full_name(handle);
  id = stable_id(name, entry->lower != nullptr);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    ArgPlan plan;
    plan.kind = kind_of(argument);
    plan.name = argument.name();
    const c10::AliasInfo* alias = argument.alias_info();
    plan.written = (alias != nullptr && alias->isWrite()) || lists(entry->writes, plan.name);
    writes |= plan.written;
    reads_tensors |=
        !plan.written && (plan.kind == ArgKind::kTensor || plan.kind == ArgKind::kTensorList);
    if (argument.is_out()) {
      plan.read = false;
      out_form = true;
    }
    if (plan.written && entry->overwrites) plan.read = false;
    plan.keyed = lists(entry->keyed, plan.name);
    if (plan.kind == ArgKind::kScalar && argument.default_value()) {
      plan.default_value = number_of(*argument.default_value());
    }
    if (plan.name == "device") device_arg = static_cast<int>(i);
    if (plan.kind == ArgKind::kGenerator) generator_arg = static_cast<int>(i);
    args.push_back(std::move(plan));
  }
  std::vector<bool> returned(args.size(), false);
  for (const c10::Argument& result : schema.returns()) {
    int source = -1;
    if (const c10::AliasInfo* alias = result.alias_info(); alias != nullptr && alias->isWrite()) {
      for (size_t i = 0; i < args.size(); ++i) {
        const c10::AliasInfo* other = schema.arguments()[i].alias_info();
        if (other != nullptr && other->beforeSets() == alias->beforeSets()) {
          source = static_cast<int>(i);
          returned[i] = true;
        }
      }
    }
    returns.push_back(source);
    return_is_list.push_back(result.type()->kind() == TypeKind::ListType);
    return_is_tensor.push_back(return_is_list.back() ||
                               result.type()->kind() == TypeKind::TensorType);
  }
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].written && !returned[i]) extra_writes.push_back(static_cast<int>(i));
  }
  copies_out = out_form && (entry->counted || entry->no_meta) && extra_writes.empty() &&
               name != "aten::" + std::string(entry->name);
}

namespace {

// The ops of the table. Complete before the first call and only read from then on, so without a
// lock.
struct Registry {
  std::vector<std::unique_ptr<Op>> ops;
  std::unordered_map<std::string, const Op*> by_name;
};

Registry& registry() {
  static auto* all = new Registry();
  return *all;
}

// Ops that users define, while other threads run.
struct AddedOps {
  std::mutex mutex;
  std::unordered_map<std::string, const Op*> by_name;
};

AddedOps& added_ops() {
  static auto* all = new AddedOps();
  return *all;
}

bool same_type(const c10::Argument& a, const c10::Argument& b) {
  return a.name() == b.name() && a.real_type()->kind() == b.real_type()->kind() &&
         *a.real_type() == *b.real_type();
}

// Same inputs, leaving out= tensors aside?
bool same_inputs(const c10::FunctionSchema& functional, const c10::FunctionSchema& other) {
  size_t j = 0;
  const auto& theirs = other.arguments();
  for (const c10::Argument& mine : functional.arguments()) {
    // The out= form of a factory function has no dtype, layout, device, pin_memory.
    while (j < theirs.size() && theirs[j].is_out()) ++j;
    if (j < theirs.size() && same_type(mine, theirs[j])) {
      ++j;
      continue;
    }
    static const char* const kFactory[] = {"dtype", "layout", "device", "pin_memory"};
    if (std::none_of(std::begin(kFactory), std::end(kFactory),
                     [&](const char* name) { return mine.name() == name; })) {
      return false;
    }
  }
  while (j < theirs.size() && theirs[j].is_out()) ++j;
  return j == theirs.size();
}

void add_op(torch::Library& library, const c10::OperatorHandle& handle, const ops::Entry* entry) {
  auto op = std::make_unique<Op>(handle, entry);
  if (!registry().by_name.emplace(op->name, op.get()).second) return;
  if (!entry->internal)
    library.impl(op->name.substr(std::string("aten::").size()).c_str(), make_kernel(*op));
  registry().ops.push_back(std::move(op));
}

}  // namespace

const Op& find_op(const std::string& name) {
  const auto& table = registry().by_name;
  if (const auto it = table.find(name); it != table.end()) return *it->second;
  AddedOps& added = added_ops();
  const std::lock_guard lock(added.mutex);
  const auto it = added.by_name.find(name);
  TORCH_INTERNAL_ASSERT(it != added.by_name.end(), "no table entry for ", name);
  return *it->second;
}

void remember_op(const Op& op) {
  TORCH_INTERNAL_ASSERT(!registry().by_name.contains(op.name), op.name, " is of the table");
  AddedOps& added = added_ops();
  const std::lock_guard lock(added.mutex);
  added.by_name[op.name] = &op;
}

std::vector<std::pair<std::string, std::string>> op_forms() {
  std::vector<std::pair<std::string, std::string>> forms;
  for (const auto& op : registry().ops) {
    forms.emplace_back(op->name.substr(std::string("aten::").size()), op->entry->name);
  }
  return forms;
}

void register_fallback();  // fallback.cpp

namespace {

void register_all() {
  // Never destroyed: deregistration at exit would race with Python's own teardown.
  static auto* library = new torch::Library(torch::Library::IMPL, "aten",
                                            c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  // All overloads by op name, to find the in-place and out= forms.
  std::unordered_map<std::string, std::vector<c10::OperatorHandle>> overloads;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    if (auto handle = dispatcher.findSchema(name)) overloads[name.name].push_back(*handle);
  }
  for (const ops::Entry& entry : ops::table()) {
    const std::string full = "aten::" + std::string(entry.name);
    const size_t dot = full.find('.');
    const std::string base = full.substr(0, dot);
    const std::string overload = dot == std::string::npos ? "" : full.substr(dot + 1);
    auto handle = dispatcher.findSchema({base, overload});
    // An op this version of torch does not have.
    if (!handle) continue;
    add_op(*library, *handle, &entry);
    const c10::FunctionSchema& schema = handle->schema();
    for (const c10::OperatorHandle& other : overloads[base]) {
      const c10::FunctionSchema& candidate = other.schema();
      if (candidate.operator_name() == schema.operator_name()) continue;
      const bool is_out = std::any_of(candidate.arguments().begin(), candidate.arguments().end(),
                                      [](const c10::Argument& a) { return a.is_out(); });
      if (is_out && same_inputs(schema, candidate)) add_op(*library, other, &entry);
    }
    for (const c10::OperatorHandle& other : overloads[base + "_"]) {
      if (other.schema().overload_name() == overload && same_inputs(schema, other.schema())) {
        add_op(*library, other, &entry);
      }
    }
  }
  register_fallback();
}

}  // namespace

void register_ops() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

}  // namespace torch_tpu::dispatch
