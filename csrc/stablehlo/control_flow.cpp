// Builder: loops, branches and barriers. Their bodies may use values from outside.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

bool same_shapes(const std::vector<Type>& a, const std::vector<Type>& b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i) {
    same = a[i].dtype == b[i].dtype && a[i].dims == b[i].dims;
  }
  return same;
}

Values branches_of(Graph& graph, std::string_view name, const Value& selector,
                   const std::vector<Region>& bodies) {
  std::string_view op = short_name(name);
  std::vector<int32_t> regions;
  std::vector<Type> first;
  for (const Region& body : bodies) {
    regions.push_back(graph.region(op, {}, body, /*isolated=*/false));
    std::vector<Type> types = graph.result_types(regions.back());
    if (regions.size() == 1) first = types;
    if (!same_shapes(types, first)) {
      fail(op, "branches that all return " + types_text(first), types_text(types));
    }
    for (size_t i = 0; i < types.size(); ++i) {
      Axes axes = axes_of(first[i]);
      for (size_t d = 0; d < axes.size(); ++d) {
        axes[d] = join_axes(op, axes[d], axes_of(types[i])[d], first[i]);
      }
      first[i] = make_type(first[i].dtype, first[i].dims, std::move(axes));
    }
  }
  return graph.emit(name, {selector}, first, {}, Form::kGeneric, regions);
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
  const std::vector<Type> next = graph.result_types(step);
  if (!same_shapes(next, types)) {
    fail("while", "a body that returns " + types_text(types), types_text(next));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    for (int64_t d = 0; d < types[i].rank(); ++d) {
      if (next[i].varies(d) && axis_of(next[i], d) != axis_of(types[i], d)) {
        unproven("while", "only inside of the loop", next[i]);
      }
    }
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
