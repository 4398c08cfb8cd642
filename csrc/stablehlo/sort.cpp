// Builder: sort and top_k.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {

Values Builder::sort(const Values& xs, int64_t dim, bool stable, const Region& comparator) {
  Graph& graph = impl_->graph;
  if (xs.empty()) fail("sort", "at least one operand", "none");
  Values operands = xs;
  for (const Value& x : operands) graph.check("sort", x);
  unify_shapes("sort", operands);
  check_dim("sort", dim, operands[0].rank());
  if (is_dynamic(operands[0].type(), dim)) {
    fail("sort", "a static dimension to sort", operands[0].type());
  }
  std::vector<Type> arguments;
  for (const Value& x : operands) {
    arguments.emplace_back(x.dtype(), Dims{});
    arguments.emplace_back(x.dtype(), Dims{});
  }
  int32_t region = graph.region("sort", arguments, comparator, /*isolated=*/true);
  if (graph.result_types(region) != std::vector<Type>{Type(DType::kBool, {})}) {
    fail("sort", "a comparator that returns tensor<i1>", types_text(graph.result_types(region)));
  }
  std::string text = "dimension = " + int_attribute(dim);
  text += stable ? ", is_stable = true" : ", is_stable = false";
  return graph.emit("stablehlo.sort", operands, types_of(operands), std::move(text), Form::kGeneric,
                    {region});
}

Values Builder::top_k(const Value& x, int64_t k) {
  impl_->graph.check("top_k", x);
  check_static("top_k", x);
  if (x.rank() == 0) fail("top_k", "at least one dimension", x.type());
  if (is_complex(x.dtype()) || x.dtype() == DType::kBool) {
    fail("top_k", "integer or float", x.type());
  }
  int64_t last = x.rank() - 1;
  if (k < 0 || k > x.dims()[last]) {
    fail("top_k", "k up to " + std::to_string(x.dims()[last]), std::to_string(k));
  }
  Type values = x.type();
  values.dims[last] = k;
  return impl_->graph.emit("chlo.top_k", {x}, {values, with_dtype(values, DType::kS32)},
                           "k = " + int_attribute(k));
}

}  // namespace torch_tpu::stablehlo
