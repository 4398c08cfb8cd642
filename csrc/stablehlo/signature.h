// What a module in MLIR's text takes and gives, read from the types of its function @main: for
// modules that come from files. Not a parser of MLIR: what it does not know it refuses.
#pragma once

#include <string_view>
#include <vector>

#include "csrc/stablehlo/type.h"

namespace torch_tpu::stablehlo {

struct Signature {
  std::vector<Type> arguments;
  std::vector<Type> results;
};

// Throws std::invalid_argument when there is no function @main, or more than one, or when something
// in its signature is no tensor of static sizes and of a known element type.
Signature main_signature(std::string_view text);

}  // namespace torch_tpu::stablehlo
