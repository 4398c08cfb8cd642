// A key in words: its words walked again with the op's plan, as frame.cpp laid them out. For
// reports only, never on the way of a call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/dispatch/call/op.h"

namespace torch_tpu::dispatch {

struct Field {
  std::string label;     // "input[0].shape[1]", "dim"
  std::string value;     // "128"
  std::string argument;  // the schema's name for it: "self", "tensors[1]"
};

// Empty when the words do not fit the op.
std::vector<Field> key_fields(const Op& op, std::span<const uint64_t> words);

struct Difference {
  std::string label;
  std::string argument;
  std::string before;
  std::string after;
  int others = 0;            // further fields that differ
  std::string text() const;  // "input[0].shape[1]: 128 → 135"
};

// The first of the fields that differ, or nothing.
std::optional<Difference> first_difference(const std::vector<Field>& before,
                                           const std::vector<Field>& after);

}  // namespace torch_tpu::dispatch
