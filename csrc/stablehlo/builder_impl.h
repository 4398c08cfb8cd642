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

  Graph graph;
  std::vector<int64_t> aliased_output;            // by parameter; -1 = not donated
  std::vector<std::string> parameter_attributes;  // by parameter
  std::vector<std::pair<int64_t, std::string>> result_attributes;
  std::string prologue;
  int64_t replicas = 1, partitions = 1;
};

// Makes the operands' shapes equal where one is static at another's bound, by giving the static one
// the other's runtime size; throws when the shapes differ otherwise. Dtypes are not compared.
void unify_shapes(std::string_view op, Values& xs);
// As above, for one dimension of two values.
void unify_dim(std::string_view op, Value& a, int64_t a_dim, Value& b, int64_t b_dim);

// The region of a reduction: a scalar op named by `kind`, with kAnd/kOr/kXor checked.
Region reduction_body(std::string_view op, Builder& builder, Reduction kind);

}  // namespace torch_tpu::stablehlo
