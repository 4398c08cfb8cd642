// All numbers of a piece of the trace that sizes decide (sizes, strides, offsets, ends of ranges),
// in one order, so that pieces which differ in them only can be compared: each number as a function
// of n, the one size that varies.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/trace/key.h"
#include "csrc/trace/program.h"

namespace torch_tpu::trace {

using Numbers = std::vector<int64_t>;

// c0 + c1 n + c2 n^2. Strides are products of sizes, hence the square.
struct Form {
  int64_t c0 = 0;
  int64_t c1 = 0;
  int64_t c2 = 0;
  bool varies() const { return c1 != 0 || c2 != 0; }
  int64_t at(int64_t n) const { return c0 + c1 * n + c2 * n * n; }
  bool operator==(const Form&) const = default;
};
using Forms = std::vector<Form>;

// Appends the numbers of a node, and to `structure` all else it was lowered from but what
// identifies its inputs. False when the node holds an argument of unknown kind.
bool describe(const Node& node, Numbers& numbers, Key& structure);

// The numbers of one node as forms, where its lowering looks for them.
struct TensorForms {
  std::span<const Form> sizes;
  std::span<const Form> strides;
  Form offset;
  std::span<const Form> base;  // the base value's sizes
  std::span<const Form> base_strides;
};
struct NodeForms {
  std::vector<TensorForms> tensors;
  std::vector<std::span<const Form>> results;  // sizes
};

// Takes the forms of a node's numbers from `forms`, which begins with them and is advanced, and
// gives the node with the numbers for `n`. Arguments in which one varies are marked.
NodeForms take_forms(std::span<const Form>& forms, int64_t n, Node& node);

// The forms that give each of the pieces' numbers, of two pieces or three; none when there are no
// such. The pieces have equally many. `n` is filled with the size of each.
std::optional<Forms> fit(std::span<const Numbers* const> pieces, std::vector<int64_t>& n);
// The n for which the forms give these numbers.
std::optional<int64_t> solve(const Forms& forms, const Numbers& numbers);

}  // namespace torch_tpu::trace
