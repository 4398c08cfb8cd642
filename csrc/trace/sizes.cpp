#include "csrc/trace/sizes.h"

#include <type_traits>

namespace torch_tpu::trace {
namespace {

// The end of a range is the only argument that may vary: it says nothing but the size.
bool is_range_end(const Node& node, const NodeArg& arg) {
  return arg.name == "end" && node.entry->name.starts_with("arange");
}

// Calls visit(number) for each in order. Strides of single elements mean nothing and are
// taken as 0. N is Node or const Node.
template <typename N, typename Visit>
void visit_shapes(N& node, Visit&& visit) {
  const auto all = [&](auto& numbers) {
    for (auto& number : numbers) visit(number);
  };
  const auto all_strides = [&](const auto& sizes, auto& strides) {
    for (size_t i = 0; i < strides.size(); ++i) {
      if (sizes[i] == 1) {
        int64_t none = 0;
        visit(none);
        if constexpr (!std::is_const_v<N>) strides[i] = 0;
      } else {
        visit(strides[i]);
      }
    }
  };
  for (auto& tensor : node.tensors) {
    all(tensor.geometry.sizes);
    all_strides(tensor.geometry.sizes, tensor.geometry.strides);
    visit(tensor.geometry.offset);
    all(tensor.base.dims);
    all_strides(tensor.base.dims, tensor.base_strides);
  }
  for (auto& result : node.results) {
    all(result.sizes);
    all_strides(result.sizes, result.strides);
  }
}

// Numbers so large are no sizes, and sums of them would overflow.
constexpr int64_t kLargest = int64_t{1} << 50;
bool may_vary(int64_t number) { return -kLargest < number && number < kLargest; }

// An end of a range that may vary.
std::optional<int64_t> end_of(const base::Number& number) {
  if (number.kind() == base::Number::Kind::kUInt || !number.is_whole()) return {};
  if (!may_vary(number.truncated())) return {};
  return number.truncated();
}

// An argument that is not a tensor: integers are numbers unless they are too large, all else is
// structure.
bool describe_argument(const c10::IValue& value, Numbers& numbers, Key& structure) {
  if (value.isNone()) {
    structure.add(uint64_t{0});
  } else if (value.isInt()) {
    const int64_t number = value.toInt();
    structure.add(uint64_t{may_vary(number) ? 1u : 8u});
    if (may_vary(number)) {
      numbers.push_back(number);
    } else {
      structure.add(number);
    }
  } else if (value.isBool()) {
    structure.add(uint64_t{2} + static_cast<uint64_t>(value.toBool()));
  } else if (value.isDouble()) {
    structure.add(uint64_t{4});
    structure.add(value.toDouble());
  } else if (value.isString()) {
    structure.add(uint64_t{5});
    structure.add_text(value.toStringRef());
  } else if (value.isDevice()) {
    structure.add(uint64_t{6});
  } else if (value.isList()) {
    const auto list = value.toList();
    structure.add(uint64_t{7} | static_cast<uint64_t>(list.size()) << 8);
    for (const c10::IValue& item : list) {
      if (!describe_argument(item, numbers, structure)) return false;
    }
  } else {
    return false;
  }
  return true;
}

// In the order of describe_argument: how many numbers are there.
size_t count_numbers(const c10::IValue& value) {
  if (value.isInt()) return may_vary(value.toInt()) ? 1 : 0;
  if (!value.isList()) return 0;
  size_t count = 0;
  for (const c10::IValue& item : value.toList()) count += count_numbers(item);
  return count;
}

}  // namespace

bool describe(const Node& node, Numbers& numbers, Key& structure) {
  structure.add_text(node.name);
  structure.add(uint64_t{node.tensors.size()});
  for (const TensorArg& tensor : node.tensors) {
    const uint64_t flags = static_cast<uint64_t>(tensor.wrapped_number) |
                           static_cast<uint64_t>(tensor.conj) << 1 |
                           static_cast<uint64_t>(tensor.neg) << 2;
    structure.add(static_cast<uint64_t>(tensor.form) | static_cast<uint64_t>(tensor.dtype) << 8 |
                  flags << 16 | uint64_t{tensor.geometry.sizes.size()} << 24 |
                  uint64_t{tensor.base.dims.size()} << 32 |
                  static_cast<uint64_t>(tensor.base.dtype) << 40);
    structure.add(static_cast<int64_t>(tensor.input));
    structure.add(static_cast<int64_t>(tensor.same_cell));
    structure.add(static_cast<uint64_t>(tensor.scalar.type) << 8 |
                  static_cast<uint64_t>(tensor.scalar.carrier));
    structure.add(static_cast<int64_t>(tensor.scalar.slot));
    structure.add(uint64_t{tensor.starts.size()} << 1 | static_cast<uint64_t>(tensor.is_box));
    for (const TensorArg::Start& start : tensor.starts) {
      structure.add(static_cast<uint64_t>(start.dim) << 32 | static_cast<uint64_t>(start.slot));
    }
  }
  structure.add(uint64_t{node.results.size()});
  for (const Result& result : node.results) {
    if (result.extent) return false;
    structure.add(static_cast<uint64_t>(result.defined) | static_cast<uint64_t>(result.whole) << 1 |
                  static_cast<uint64_t>(result.dtype) << 8 | uint64_t{result.sizes.size()} << 16);
    structure.add(static_cast<int64_t>(result.write));
  }
  visit_shapes(node, [&](int64_t number) { numbers.push_back(number); });
  for (const NodeArg& arg : node.args) {
    structure.add(static_cast<uint64_t>(arg.present) | static_cast<uint64_t>(arg.is_list) << 1 |
                  static_cast<uint64_t>(arg.scalars.size()) << 8);
    structure.add(static_cast<int64_t>(arg.num_tensors));
    if (!describe_argument(arg.value, numbers, structure)) return false;
    for (const ScalarArg& scalar : arg.scalars) {
      structure.add(static_cast<uint64_t>(scalar.type) << 16 |
                    static_cast<uint64_t>(scalar.carrier) << 8 |
                    static_cast<uint64_t>(scalar.known.has_value()));
      structure.add(static_cast<int64_t>(scalar.slot));
      if (!scalar.known) continue;
      if (const auto end = end_of(*scalar.known); end && is_range_end(node, arg)) {
        numbers.push_back(*end);
      } else {
        structure.add_bits(*scalar.known);
      }
    }
  }
  return true;
}

NodeForms take_forms(std::span<const Form>& forms, const Point& point, Node& node) {
  NodeForms out;
  const auto take = [&](size_t count) {
    const std::span<const Form> taken = forms.first(count);
    forms = forms.subspan(count);
    return taken;
  };
  const std::span<const Form> start = forms;
  for (const TensorArg& tensor : node.tensors) {
    TensorForms& here = out.tensors.emplace_back();
    here.sizes = take(tensor.geometry.sizes.size());
    here.strides = take(tensor.geometry.strides.size());
    here.offset = take(1)[0];
    here.base = take(tensor.base.dims.size());
    here.base_strides = take(tensor.base_strides.size());
  }
  for (const Result& result : node.results) {
    out.results.push_back(take(result.sizes.size()));
    take(result.strides.size());
  }
  size_t next = 0;
  // Sizes are set before the strides beside them are looked at: a size that varies is not 1.
  visit_shapes(node, [&](int64_t& number) { number = start[next++].at(point); });
  for (NodeArg& arg : node.args) {
    for (const Form& form : take(count_numbers(arg.value))) arg.varies |= form.varies();
    for (ScalarArg& scalar : arg.scalars) {
      if (!scalar.known || !is_range_end(node, arg) || !end_of(*scalar.known)) continue;
      const int64_t end = take(1)[0].at(point);
      scalar.known = scalar.known->is_integer() ? base::Number(end) : static_cast<double>(end);
    }
  }
  return out;
}

}  // namespace torch_tpu::trace
