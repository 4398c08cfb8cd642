// Registers ops whose lowering comes from outside (csrc/ops/foreign.h) with PyTorch's dispatcher.
// Their calls then run like those of the table: a hit knows nothing of where the program came from.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "csrc/ops/foreign.h"

namespace torch_tpu::dispatch {

struct ForeignOp {
  std::string name;                 // "ns::name" or "ns::name.overload"; its schema is defined
  std::vector<std::string> traced;  // see ForeignEntry
  ops::ForeignLowering lowering;
  // Defines the op of its gradient where that is not done yet, and gives its name; see Gradient.
  // None: a call that needs a gradient is an error.
  std::function<std::string()> gradient;
  bool gradient_keeps_outputs = false;
};

// May be called again for the same name, when its schema has been defined anew.
void register_foreign(ForeignOp op);
// Before the schema is taken away.
void forget_foreign(const std::string& name);

}  // namespace torch_tpu::dispatch
