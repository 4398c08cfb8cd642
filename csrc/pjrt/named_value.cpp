// Named values: to and from the C structs.
#include "csrc/pjrt/named_value.h"

#include "csrc/pjrt/api.h"

namespace torch_tpu::pjrt {

NamedValues from_pjrt(const PJRT_NamedValue* values, size_t count) {
  NamedValues result;
  for (size_t i = 0; i < count; ++i) {
    const PJRT_NamedValue& v = values[i];
    NamedValue& out = result[std::string(v.name, v.name_size)];
    switch (v.type) {
      case PJRT_NamedValue_kString:
        out = std::string(v.string_value, v.value_size);
        break;
      case PJRT_NamedValue_kInt64:
        out = v.int64_value;
        break;
      case PJRT_NamedValue_kInt64List:
        out = std::vector<int64_t>(v.int64_array_value, v.int64_array_value + v.value_size);
        break;
      case PJRT_NamedValue_kFloat:
        out = v.float_value;
        break;
      case PJRT_NamedValue_kBool:
        out = v.bool_value;
        break;
    }
  }
  return result;
}

std::vector<PJRT_NamedValue> to_pjrt(const NamedValues& values) {
  std::vector<PJRT_NamedValue> result;
  result.reserve(values.size());
  for (const auto& [name, value] : values) {
    auto v = make_args<PJRT_NamedValue>();
    v.name = name.data();
    v.name_size = name.size();
    v.value_size = 1;
    if (const auto* text = std::get_if<std::string>(&value)) {
      v.type = PJRT_NamedValue_kString;
      v.string_value = text->data();
      v.value_size = text->size();
    } else if (const auto* number = std::get_if<int64_t>(&value)) {
      v.type = PJRT_NamedValue_kInt64;
      v.int64_value = *number;
    } else if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
      v.type = PJRT_NamedValue_kInt64List;
      v.int64_array_value = list->data();
      v.value_size = list->size();
    } else if (const auto* real = std::get_if<float>(&value)) {
      v.type = PJRT_NamedValue_kFloat;
      v.float_value = *real;
    } else {
      v.type = PJRT_NamedValue_kBool;
      v.bool_value = std::get<bool>(value);
    }
    result.push_back(v);
  }
  return result;
}

std::string to_string(const NamedValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* real = std::get_if<float>(&value)) return std::to_string(*real);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  std::string result = "[";
  for (const int64_t element : std::get<std::vector<int64_t>>(value)) {
    if (result.size() > 1) result += ", ";
    result += std::to_string(element);
  }
  return result + "]";
}

}  // namespace torch_tpu::pjrt
