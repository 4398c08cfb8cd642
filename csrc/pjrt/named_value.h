// Named values: client options, plugin and device attributes, cost analysis.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "pjrt_c_api.h"

namespace torch_tpu::pjrt {

using NamedValue = std::variant<std::string, int64_t, std::vector<int64_t>, float, bool>;
using NamedValues = std::map<std::string, NamedValue>;

// Copies what PJRT returned; `values` may be null when `count` is 0.
NamedValues from_pjrt(const PJRT_NamedValue* values, size_t count);

// Points into `values`, which must outlive the result unchanged.
std::vector<PJRT_NamedValue> to_pjrt(const NamedValues& values);

// "1.13.3", "4", "[2, 2]", "true": for reports and messages.
std::string to_string(const NamedValue& value);

}  // namespace torch_tpu::pjrt
