// A function written by somebody else, as text, that becomes part of a module under construction.
#pragma once

#include <string>
#include <vector>

#include "csrc/stablehlo/builder.h"

namespace torch_tpu::stablehlo {

struct ForeignFunction {
  std::string symbol;          // of the function to call; unique by what it does
  std::string text;            // it and the private functions it calls
  std::vector<Type> operands;  // what it takes
  std::vector<Type> results;
};

// A call of it. The text goes into the module once, however often it is called there.
Values call_foreign(Builder& b, const ForeignFunction& function, const Values& operands);

}  // namespace torch_tpu::stablehlo
