// Ops whose lowering is a function of somebody else's: a kernel that a user wrote in JAX or Pallas.
// Such an op is no part of the table; it is registered while the program runs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/ops/source.h"
#include "csrc/ops/table.h"
#include "csrc/stablehlo/foreign.h"

namespace torch_tpu::ops {

using ForeignPtr = std::shared_ptr<const stablehlo::ForeignFunction>;

// Makes the function for these arguments. Asked once per operand types, static arguments and
// target. Throws where there is none.
using ForeignLowering = std::function<ForeignPtr(const std::vector<Argument>&)>;

struct ForeignEntry : Entry {
  // `traced`: arguments of type float that are values of the program; other numbers are part of
  // the key.
  ForeignEntry(std::string name, std::vector<std::string> arguments,
               const std::vector<std::string>& traced, ForeignLowering lowering);
  ForeignEntry(const ForeignEntry&) = delete;
  ForeignEntry& operator=(const ForeignEntry&) = delete;

  // Thread-safe.
  Values lower_call(Builder& b, const Source& source) const;

 private:
  const std::string full_name_;
  const std::vector<std::string> argument_names_;  // what Entry::keyed points to
  const ForeignLowering lowering_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, ForeignPtr> known_;
};

// What else functions depend on: which chip those for TPUs are made for. For all threads.
void set_foreign_variant(std::string text);

// Null for entries of the table.
const ForeignEntry* as_foreign(const Entry& entry);

}  // namespace torch_tpu::ops
