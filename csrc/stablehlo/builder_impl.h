// What a Builder holds besides its instructions. Internal to csrc/stablehlo.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "csrc/stablehlo/builder.h"
#include "csrc/stablehlo/graph.h"

namespace torch_tpu::stablehlo {

struct Builder::Impl {
  explicit Impl(Builder* owner) : graph(owner) {}

  // What sizes are made of: a number of the program, or computed of other sizes.
  struct Number {
    enum class Kind : uint8_t { kGiven, kFloorDiv, kMin, kMax, kProduct };
    Kind kind = Kind::kGiven;
    int32_t value = -1;  // kGiven
    Size of;
    int64_t k = 0;                 // for kGiven: how many were given before
    std::vector<int32_t> factors;  // kProduct: numbers that are none, sorted
    bool operator==(const Number&) const = default;
  };
  Size derived(Number::Kind kind, const Size& of, int64_t k);
  int32_t number(Number number);                     // its index; equal ones have one
  int32_t intern(Axis axis);                         // kWhole where nothing varies
  int32_t prefix(int64_t extent, const Size& size);  // the axis whose first elements count
  // Of a dimension that varies and was not merged with others.
  const Size& prefix_size(std::string_view op, const Type& type, int64_t dim) const;
  Value with_axis(const Value& x, int64_t dim, int32_t axis);  // the same value, another claim
  // Which elements of a window's results along a dimension count.
  int32_t window_axis(std::string_view op, const Type& x, int64_t dim, int64_t extent,
                      int64_t reach, int64_t stride, int64_t padding, int64_t base_dilation);
  Axes reshape_axes(const Type& from, const Dims& dims);

  std::vector<Axis> axes;       // by the numbers in Type::axes
  std::vector<Number> numbers;  // by the numbers in Size::terms

  Graph graph;
  std::vector<int64_t> aliased_output;            // by parameter; -1 = not donated
  std::vector<std::string> parameter_attributes;  // by parameter
  std::vector<std::pair<int64_t, std::string>> result_attributes;
  std::string prologue;
  int64_t replicas = 1, partitions = 1;
};

// The type of an elementwise result, with the dtype of the first operand: a dimension varies where
// it does in one of them. Throws when shapes differ; Unproven when they vary in different ways.
Type unify_shapes(std::string_view op, const Values& xs);
// As above, for one dimension of two values: the axis.
int32_t unify_dim(std::string_view op, const Value& a, int64_t a_dim, const Value& b,
                  int64_t b_dim);
int32_t join_axes(std::string_view op, int32_t a, int32_t b, const Type& type);
[[noreturn]] void unproven(std::string_view op, std::string_view what, const Type& type);

// The region of a reduction: a scalar op named by `kind`, with kAnd/kOr/kXor checked.
Region reduction_body(std::string_view op, Builder& builder, Reduction kind);

}  // namespace torch_tpu::stablehlo
