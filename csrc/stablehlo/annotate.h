// Notes to the compiler that change no value: where an instruction comes from (it is in the
// compiler's reports), and how a value is to be spread over the devices of a partitioned program.
#pragma once

#include <memory>
#include <string>

#include "csrc/stablehlo/builder.h"

namespace torch_tpu::stablehlo {

using Label = std::shared_ptr<const std::string>;

// While one is alive, instructions that this thread appends are printed with the label as their
// location. Inner ones win. The text of a module without any has no locations.
class LabelScope {
 public:
  explicit LabelScope(std::string label);
  ~LabelScope();
  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;

 private:
  Label previous_;
};

// Null without a scope.
const Label& current_label() noexcept;

// The same value, spread as `sharding` says: "{devices=[4,1]<=[4]}", "{replicated}".
Value sharding_constraint(Builder& b, const Value& x, const std::string& sharding);

}  // namespace torch_tpu::stablehlo
