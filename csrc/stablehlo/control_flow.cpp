// Builder: loops, branches and barriers. Their bodies may use values from outside.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

Values branches_of(Graph& graph, std::string_view name, const Value& selector,
                   const std::vector<Region>& bodies) {
  std::string_view op = short_name(name);
  std::vector<int32_t> regions;
  for (const Region& body : bodies) {
    regions.push_back(graph.region(op, {}, body, /*isolated=*/false));
    std::vector<Type> first = graph.result_types(regions[0]);
    std::vector<Type> types = graph.result_types(regions.back());
    if (types != first) {
      fail(op, "branches that all return " + types_text(first), types_text(types));
    }
  }
  return graph.emit(name, {selector}, graph.result_types(regions[0]), {}, Form::kGeneric, regions);
}

}  // namespace

Values Builder::while_loop(const Values& inits, const Region& condition, const Region& body) {
  Graph& graph = impl_->graph;
  for (const Value& x : inits) graph.check("while", x);
  std::vector<Type> types = types_of(inits);
  int32_t test = graph.region("while", types, condition, /*isolated=*/false);
  if (graph.result_types(test) != std::vector<Type>{Type(DType::kBool, {})}) {
    fail("while", "a condition that returns tensor<i1>", types_text(graph.result_types(test)));
  }
  int32_t step = graph.region("while", types, body, /*isolated=*/false);
  if (graph.result_types(step) != types) {
    fail("while", "a body that returns " + types_text(types), types_text(graph.result_types(step)));
  }
  return graph.emit("stablehlo.while", inits, types, {}, Form::kGeneric, {test, step});
}

Values Builder::if_else(const Value& pred, const Region& on_true, const Region& on_false) {
  impl_->graph.check("if", pred);
  check_scalar("if", pred, DType::kBool);
  return branches_of(impl_->graph, "stablehlo.if", pred, {on_true, on_false});
}

Values Builder::switch_case(const Value& index, const std::vector<Region>& branches) {
  impl_->graph.check("case", index);
  check_scalar("case", index, DType::kS32);
  if (branches.empty()) fail("case", "at least one branch", "none");
  return branches_of(impl_->graph, "stablehlo.case", index, branches);
}

Values Builder::optimization_barrier(const Values& xs) {
  for (const Value& x : xs) impl_->graph.check("optimization_barrier", x);
  if (xs.empty()) return xs;
  return impl_->graph.emit("stablehlo.optimization_barrier", xs, types_of(xs));
}

}  // namespace torch_tpu::stablehlo
