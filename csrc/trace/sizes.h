// All numbers of a piece of the trace that sizes decide (sizes, strides, offsets, ends of ranges),
// in one order, so that pieces which differ in them only can be compared: each number as a function
// of the one or two sizes that vary on their own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/trace/form.h"
#include "csrc/trace/key.h"
#include "csrc/trace/program.h"

namespace torch_tpu::trace {

using Numbers = std::vector<int64_t>;

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
// gives the node with the numbers for `point`. Arguments in which one varies are marked.
NodeForms take_forms(std::span<const Form>& forms, const Point& point, Node& node);

// The forms that give each of the pieces' numbers, of two pieces or three; none when there are no
// such. The pieces have equally many. `points` is filled with the sizes of each.
std::optional<Forms> fit(std::span<const Numbers* const> pieces, std::vector<Point>& points);
// Where the forms give these numbers.
std::optional<Point> solve(const Forms& forms, const Numbers& numbers);

}  // namespace torch_tpu::trace
