#include "csrc/ops/foreign.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "csrc/ops/helpers.h"
#include "csrc/ops/target.h"

namespace torch_tpu::ops {
namespace {

// Stands in Entry::lower, which tells a foreign entry from one that has no lowering.
Values not_called(Call&) {
  throw std::logic_error("a foreign function is called by trace::lower_into");
}

std::mutex variant_mutex;
std::string& variant() {
  static auto* text = new std::string();
  return *text;
}

std::string key_of(const std::vector<Argument>& arguments) {
  std::ostringstream out;
  {
    const std::lock_guard lock(variant_mutex);
    out << variant() << ' ';
  }
  out << static_cast<int>(target().compiler) << ' ' << static_cast<int>(target().f32_precision);
  for (const Argument& argument : arguments) {
    out << '\n' << argument.present << ' ' << argument.tensors.size();
    for (const Value& tensor : argument.tensors) {
      out << ' ' << (tensor.defined() ? tensor.type().str() : "none");
    }
    if (argument.known) out << ' ' << to_string(*argument.known);
    for (c10::ScalarType type : argument.scalar_types) out << ' ' << static_cast<int>(type);
    if (!argument.value.isNone()) out << ' ' << argument.value.tagKind() << ' ' << argument.value;
  }
  return out.str();
}

}  // namespace

ForeignEntry::ForeignEntry(std::string name, std::vector<std::string> arguments,
                           const std::vector<std::string>& traced, ForeignLowering lowering)
    : full_name_(std::move(name)),
      argument_names_(std::move(arguments)),
      lowering_(std::move(lowering)) {
  Entry::name = full_name_;
  lower = &not_called;
  no_meta = true;
  overlap = Overlap::kFine;
  for (const std::string& argument : argument_names_) {
    if (std::find(traced.begin(), traced.end(), argument) == traced.end()) {
      keyed.push_back(argument);
    }
  }
}

Values ForeignEntry::lower_call(Builder& b, const Source& source) const {
  for (const Argument& argument : source.arguments) static_cast<void>(source.find(argument.name));
  const std::string key = key_of(source.arguments);
  ForeignPtr function;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = known_.find(key); at != known_.end()) function = at->second;
  }
  if (!function) {
    function = lowering_(source.arguments);  // may wait for Python
    const std::lock_guard lock(mutex_);
    function = known_.try_emplace(key, std::move(function)).first->second;
  }
  Values operands;
  for (const Argument& argument : source.arguments) {
    for (const Value& tensor : argument.tensors) {
      if (tensor.defined()) operands.push_back(tensor);
    }
    if (!argument.known) {
      for (const Value& number : argument.scalars) operands.push_back(cast(number, DType::kF32));
    }
  }
  return stablehlo::call_foreign(b, *function, operands);
}

void set_foreign_variant(std::string text) {
  const std::lock_guard lock(variant_mutex);
  variant() = std::move(text);
}

const ForeignEntry* as_foreign(const Entry& entry) {
  return entry.lower == &not_called ? static_cast<const ForeignEntry*>(&entry) : nullptr;
}

}  // namespace torch_tpu::ops
