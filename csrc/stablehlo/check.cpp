// Error messages, small checks and attribute text shared by the Builder's methods.
#include <stdexcept>

#include "csrc/stablehlo/axis.h"
#include "csrc/stablehlo/graph.h"

namespace torch_tpu::stablehlo {

std::string_view short_name(std::string_view name) {
  size_t dot = name.find('.');
  name = dot == std::string_view::npos ? name : name.substr(dot + 1);
  return name.substr(0, name.find(' '));  // "compare LT," -> compare
}

void fail(std::string_view op, std::string_view expected, std::string_view got) {
  std::string text = "[";
  text.append(op).append("] expected ").append(expected).append(", got ").append(got);
  throw std::invalid_argument(text);
}

void fail(std::string_view op, std::string_view expected, const Type& got) {
  fail(op, expected, got.str());
}

void check_type(std::string_view op, const Type& type) {
  for (int64_t d : type.dims) {
    if (d < 0) fail(op, "sizes of at least 0", list_text(type.dims));
  }
}

void check_static(std::string_view op, const Value& x) {
  if (x.type().is_static()) return;
  std::string text = "[";
  throw Unproven(text.append(op).append("] has no rule for dimensions that vary, ") +
                 x.type().str());
}

void check_scalar(std::string_view op, const Value& x, DType dtype) {
  if (x.rank() != 0 || x.dtype() != dtype) fail(op, Type(dtype, {}).str(), x.type());
}

void check_index(std::string_view op, std::string_view what, int64_t index, int64_t count) {
  if (index >= 0 && index < count) return;
  fail(op,
       "a" + std::string(what == "output" || what == "operand" ? "n " : " ") + std::string(what) +
           " below " + std::to_string(count),
       std::to_string(index));
}

void check_dim(std::string_view op, int64_t dim, int64_t rank) {
  check_index(op, "dimension", dim, rank);
}

void check_dims(std::string_view op, const Dims& dims, int64_t rank) {
  std::vector<bool> seen(rank, false);
  for (int64_t d : dims) {
    check_dim(op, d, rank);
    if (seen[d]) fail(op, "distinct dimensions", list_text(dims));
    seen[d] = true;
  }
}

void check_count(std::string_view op, std::string_view what, size_t expected, size_t got) {
  if (expected != got) {
    fail(op, std::to_string(expected) + " " + std::string(what), std::to_string(got));
  }
}

namespace {

void append_joined(std::string& out, const Dims& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(values[i]);
  }
}

}  // namespace

std::string list_text(const Dims& values) {
  std::string out = "[";
  append_joined(out, values);
  return out += ']';
}

std::string array_attribute(const Dims& values) {
  std::string out = values.empty() ? "array<i64" : "array<i64: ";
  append_joined(out, values);
  return out += '>';
}

std::string pairs_attribute(const Dims& first, const Dims& second) {
  std::string out = "dense<";
  if (!first.empty()) {
    out += '[';
    for (size_t i = 0; i < first.size(); ++i) {
      if (i > 0) out += ", ";
      out += list_text({first[i], second[i]});
    }
    out += ']';
  }
  return out += "> : tensor<" + std::to_string(first.size()) + "x2xi64>";
}

std::string quoted(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\' || c < 0x20 || c >= 0x7f) {
      out += '\\';
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += static_cast<char>(c);
    }
  }
  return out += '"';
}

std::string int_attribute(int64_t value) { return std::to_string(value) + " : i64"; }

int32_t axis_of(const Type& type, int64_t dim) {
  return type.axes.empty() ? kWhole : type.axes[static_cast<size_t>(dim)];
}

Axes axes_of(const Type& type) {
  return type.axes.empty() ? Axes(type.dims.size(), kWhole) : type.axes;
}

Type make_type(DType dtype, Dims dims, Axes axes) {
  Type out(dtype, std::move(dims));
  for (int32_t axis : axes) {
    if (axis == kWhole) continue;
    out.axes = std::move(axes);
    break;
  }
  return out;
}

Type with_dtype(const Type& type, DType dtype) {
  Type out = type;
  out.dtype = dtype;
  return out;
}

std::vector<Type> types_of(const Values& xs) {
  std::vector<Type> out;
  out.reserve(xs.size());
  for (const Value& x : xs) out.push_back(x.type());
  return out;
}

std::string types_text(const std::vector<Type>& types) {
  std::string out = "(";
  for (size_t i = 0; i < types.size(); ++i) {
    if (i > 0) out += ", ";
    out += types[i].str();
  }
  return out += ')';
}

}  // namespace torch_tpu::stablehlo
