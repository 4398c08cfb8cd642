// Builder: bounded dynamic dimensions. A bounded value keeps a static, padded buffer and a runtime
// size per dynamic dimension; XLA masks what lies beyond it.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

constexpr std::string_view kSet = "set_dimension_size";

void give_size(std::string_view op, Value& x, int64_t dim, const Value& source,
               int64_t source_dim) {
  int64_t bound = extent(source.type(), source_dim);
  if (is_dynamic(x.type(), dim)) {
    if (extent(x.type(), dim) != bound) {
      fail(op, "equal bounds", types_text({x.type(), source.type()}));
    }
    return;
  }
  if (x.type().dims[dim] != bound) fail(op, "equal shapes", types_text({x.type(), source.type()}));
  Builder& b = x.builder();
  x = b.set_dimension_size(x, b.get_dimension_size(source, source_dim), dim);
}

}  // namespace

void unify_dim(std::string_view op, Value& a, int64_t a_dim, Value& b, int64_t b_dim) {
  bool a_dynamic = is_dynamic(a.type(), a_dim), b_dynamic = is_dynamic(b.type(), b_dim);
  if (a_dynamic) {
    give_size(op, b, b_dim, a, a_dim);
  } else if (b_dynamic) {
    give_size(op, a, a_dim, b, b_dim);
  } else if (a.type().dims[a_dim] != b.type().dims[b_dim]) {
    fail(op, "equal sizes of dimensions " + std::to_string(a_dim) + " and " + std::to_string(b_dim),
         types_text({a.type(), b.type()}));
  }
}

void unify_shapes(std::string_view op, Values& xs) {
  bool equal = true;
  for (size_t i = 1; i < xs.size(); ++i) {
    equal = equal && xs[i].dims() == xs[0].dims() && xs[i].type().bounds == xs[0].type().bounds;
  }
  if (equal) return;
  for (const Value& x : xs) {
    if (x.rank() != xs[0].rank()) fail(op, "equal shapes", types_text(types_of(xs)));
  }
  for (int64_t d = 0; d < xs[0].rank(); ++d) {
    Value source;
    for (const Value& x : xs) {
      if (!source.defined() || (is_dynamic(x.type(), d) && !is_dynamic(source.type(), d))) {
        source = x;
      }
    }
    for (Value& x : xs) {
      if (is_dynamic(source.type(), d)) {
        give_size(op, x, d, source, d);
      } else if (x.dims()[d] != source.dims()[d]) {
        fail(op, "equal shapes", types_text(types_of(xs)));
      }
    }
  }
}

Value Builder::set_dimension_size(const Value& x, const Value& size, int64_t dim) {
  Graph& graph = impl_->graph;
  graph.check(kSet, x);
  graph.check(kSet, size);
  check_scalar(kSet, size, DType::kS32);
  check_dim(kSet, dim, x.rank());
  int64_t bound = extent(x.type(), dim);
  auto constant = graph.scalar_ints.find(size.id());
  bool whole = constant != graph.scalar_ints.end() && constant->second == bound;
  if (constant != graph.scalar_ints.end() && (constant->second < 0 || constant->second > bound)) {
    fail(kSet, "a size up to " + std::to_string(bound), std::to_string(constant->second));
  }
  if (whole && !is_dynamic(x.type(), dim)) return x;

  Dims dims = x.dims(), bounds;
  for (int64_t d = 0; d < x.rank(); ++d) bounds.push_back(bound_or_dynamic(x.type(), d));
  dims[dim] = whole ? bound : kDynamic;
  bounds[dim] = whole ? kDynamic : bound;
  return graph.emit1("stablehlo.set_dimension_size", {x, size},
                     make_type(x.dtype(), std::move(dims), std::move(bounds)),
                     "dimension = " + int_attribute(dim));
}

Value Builder::get_dimension_size(const Value& x, int64_t dim) {
  impl_->graph.check("get_dimension_size", x);
  check_dim("get_dimension_size", dim, x.rank());
  if (!is_dynamic(x.type(), dim)) return splat_int(x.dims()[dim], Type(DType::kS32, {}));
  return impl_->graph.emit1("stablehlo.get_dimension_size", {x}, Type(DType::kS32, {}),
                            "dimension = " + int_attribute(dim));
}

Value Builder::like(const Value& x, double value) {
  impl_->graph.check("like", x);
  if (x.type().is_static()) return splat(value, x.type());
  return broadcast_like(scalar(value, x.dtype()), x);
}

Value Builder::broadcast_like(const Value& x, const Value& reference) {
  impl_->graph.check("broadcast_like", x);
  impl_->graph.check("broadcast_like", reference);
  const Type& target = reference.type();
  Dims dims = target.dims;
  // A dynamic dimension that x lacks is broadcast to the bound, then cut to the runtime size.
  std::vector<int64_t> cut;
  for (int64_t d = 0; d < target.rank(); ++d) {
    int64_t at = d - (target.rank() - x.rank());
    if (!is_dynamic(target, d) || (at >= 0 && is_dynamic(x.type(), at))) continue;
    dims[d] = target.bounds[d];
    cut.push_back(d);
  }
  Value out = broadcast_to(x, dims);
  for (int64_t d : cut) out = set_dimension_size(out, get_dimension_size(reference, d), d);
  return out;
}

Value Builder::to_static(const Value& x) {
  impl_->graph.check("to_static", x);
  Value out = x;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (!is_dynamic(x.type(), d)) continue;
    out = set_dimension_size(out, splat_int(extent(x.type(), d), Type(DType::kS32, {})), d);
  }
  return out;
}

}  // namespace torch_tpu::stablehlo
