// The kinds of value checks by name: how files and recordings write them.
#pragma once

#include <string>

#include "csrc/ops/source.h"

namespace torch_tpu::ops {

// "index", "value", "matrix", "batch". The second throws std::invalid_argument for any other.
const char* check_kind_name(ValueCheck::Kind kind);
ValueCheck::Kind check_kind(const std::string& name);

}  // namespace torch_tpu::ops
