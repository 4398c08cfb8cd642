// Builder: sort and top_k.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {

Values Builder::sort(const Values& xs, int64_t dim, bool stable, const Region& comparator) {
  Graph& graph = impl_->graph;
  if (xs.empty()) fail("sort", "at least one operand", "none");
  Values operands = xs;
  for (const Value& x : operands) graph.check("sort", x);
  const Type shape = unify_shapes("sort", operands);
  check_dim("sort", dim, shape.rank());
  if (shape.varies(dim)) {
    // What does not count goes last: one more operand says so, and is compared first.
    impl_->prefix_size("sort", shape, dim);
    const Value rest = not_(counts(impl_->with_axis(operands[0], dim, axis_of(shape, dim)), dim));
    Values with_rest = {convert(rest, DType::kS32)};
    for (const Value& x : operands) with_rest.push_back(impl_->with_axis(x, dim, kWhole));
    Values out = sort(with_rest, dim, stable, [&](const Values& v) -> Values {
      const Value before = comparator(Values(v.begin() + 2, v.end()))[0];
      return {select(eq(v[0], v[1]), before, lt(v[0], v[1]))};
    });
    out.erase(out.begin());
    for (Value& x : out) x = impl_->with_axis(x, dim, axis_of(shape, dim));
    return out;
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
  std::vector<Type> results;
  for (const Value& x : operands) results.push_back(with_dtype(shape, x.dtype()));
  return graph.emit("stablehlo.sort", operands, results, std::move(text), Form::kGeneric, {region});
}

Values Builder::top_k(const Value& x, int64_t k) {
  impl_->graph.check("top_k", x);
  if (x.rank() == 0) fail("top_k", "at least one dimension", x.type());
  if (is_complex(x.dtype()) || x.dtype() == DType::kBool) {
    fail("top_k", "integer or float", x.type());
  }
  int64_t last = x.rank() - 1;
  if (k < 0 || k > x.dims()[last]) {
    fail("top_k", "k up to " + std::to_string(x.dims()[last]), std::to_string(k));
  }
  Value filled = x;
  if (x.type().varies(last)) {
    // Of equals the first wins, so what does not count is never taken while enough does.
    impl_->prefix_size("top_k", x.type(), last);
    filled = fill_rest(x, lowest(x.dtype()), {last});
  }
  Type values = filled.type();
  values.dims[last] = k;
  return impl_->graph.emit("chlo.top_k", {filled}, {values, with_dtype(values, DType::kS32)},
                           "k = " + int_attribute(k));
}

}  // namespace torch_tpu::stablehlo
