// Builder: reductions and window ops.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

Dims or_ones(const Dims& values, size_t count) { return values.empty() ? Dims(count, 1) : values; }

void check_inits(Graph& graph, std::string_view op, Values& xs, const Values& inits) {
  if (xs.empty()) fail(op, "at least one operand", "none");
  check_count(op, "init values", xs.size(), inits.size());
  for (size_t i = 0; i < xs.size(); ++i) {
    graph.check(op, xs[i]);
    graph.check(op, inits[i]);
    check_scalar(op, inits[i], xs[i].dtype());
  }
  unify_shapes(op, xs);
}

int32_t combiner(Graph& graph, std::string_view op, const Values& inits, const Region& body) {
  std::vector<Type> arguments = types_of(inits);
  std::vector<Type> expected = arguments;
  arguments.insert(arguments.end(), expected.begin(), expected.end());
  int32_t region = graph.region(op, arguments, body, /*isolated=*/true);
  if (graph.result_types(region) != expected) {
    fail(op, "a body that returns " + types_text(expected), types_text(graph.result_types(region)));
  }
  return region;
}

Values joined(Values a, const Values& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Checks a window against x and returns it with its defaults filled in.
Window full_window(std::string_view op, const Type& x, const Window& window) {
  Window w = window;
  size_t rank = x.dims.size();
  w.strides = or_ones(w.strides, rank);
  w.base_dilation = or_ones(w.base_dilation, rank);
  w.window_dilation = or_ones(w.window_dilation, rank);
  if (w.padding_low.empty()) w.padding_low.assign(rank, 0);
  if (w.padding_high.empty()) w.padding_high.assign(rank, 0);
  for (const Dims* part : {&w.sizes, &w.strides, &w.padding_low, &w.padding_high, &w.base_dilation,
                           &w.window_dilation}) {
    check_count(op, "window entries for " + x.str(), rank, part->size());
  }
  for (size_t i = 0; i < rank; ++i) {
    if (w.sizes[i] < 1 || w.strides[i] < 1 || w.base_dilation[i] < 1 || w.window_dilation[i] < 1) {
      fail(op, "positive window sizes, strides and dilations",
           list_text({w.sizes[i], w.strides[i], w.base_dilation[i], w.window_dilation[i]}));
    }
  }
  return w;
}

int64_t window_count(int64_t size, const Window& w, size_t i) {
  int64_t dilated = size == 0 ? 0 : (size - 1) * w.base_dilation[i] + 1;
  int64_t padded = dilated + w.padding_low[i] + w.padding_high[i];
  int64_t window = (w.sizes[i] - 1) * w.window_dilation[i] + 1;
  return padded < window ? 0 : (padded - window) / w.strides[i] + 1;
}

Dims window_dims(std::string_view op, const Type& x, const Window& w) {
  Dims dims;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (is_dynamic(x, i)) {
      bool trivial = w.sizes[i] == 1 && w.strides[i] == 1 && w.padding_low[i] == 0 &&
                     w.padding_high[i] == 0 && w.base_dilation[i] == 1;
      if (!trivial) fail(op, "no window over dynamic dimensions", x);
      dims.push_back(kDynamic);
    } else {
      dims.push_back(window_count(x.dims[i], w, i));
    }
  }
  return dims;
}

}  // namespace

Region reduction_body(std::string_view op, Builder& b, Reduction kind) {
  return [&b, op, kind](const Values& v) -> Values {
    switch (kind) {
      case Reduction::kAdd:
        return {b.add(v[0], v[1])};
      case Reduction::kMul:
        return {b.multiply(v[0], v[1])};
      case Reduction::kMax:
        return {b.maximum(v[0], v[1])};
      case Reduction::kMin:
        return {b.minimum(v[0], v[1])};
      case Reduction::kAnd:
        return {b.and_(v[0], v[1])};
      case Reduction::kOr:
        return {b.or_(v[0], v[1])};
      case Reduction::kXor:
        return {b.xor_(v[0], v[1])};
    }
    fail(op, "a reduction", std::to_string(static_cast<int>(kind)));
  };
}

Value Builder::reduce(const Value& x, const Value& init, const Dims& dims, Reduction kind) {
  return reduce({x}, {init}, dims, reduction_body("reduce", *this, kind))[0];
}

Values Builder::reduce(const Values& xs, const Values& inits, const Dims& dims,
                       const Region& body) {
  Values operands = xs;
  check_inits(impl_->graph, "reduce", operands, inits);
  const Type& shape = operands[0].type();
  check_dims("reduce", dims, shape.rank());
  if (dims.empty()) return xs;
  std::vector<bool> gone(shape.rank(), false);
  for (int64_t d : dims) gone[d] = true;
  Dims kept, bounds;
  for (int64_t d = 0; d < shape.rank(); ++d) {
    if (gone[d]) continue;
    kept.push_back(shape.dims[d]);
    bounds.push_back(bound_or_dynamic(shape, d));
  }
  std::vector<Type> results;
  for (const Value& x : operands) results.push_back(make_type(x.dtype(), kept, bounds));
  int32_t region = combiner(impl_->graph, "reduce", inits, body);
  return impl_->graph.emit("stablehlo.reduce", joined(operands, inits), results,
                           "dimensions = " + array_attribute(dims), Form::kGeneric, {region});
}

Value Builder::reduce_window(const Value& x, const Value& init, const Window& window,
                             Reduction kind) {
  return reduce_window({x}, {init}, window, reduction_body("reduce_window", *this, kind))[0];
}

Values Builder::reduce_window(const Values& xs, const Values& inits, const Window& window,
                              const Region& body) {
  constexpr std::string_view op = "reduce_window";
  Values operands = xs;
  check_inits(impl_->graph, op, operands, inits);
  const Type& shape = operands[0].type();
  Window w = full_window(op, shape, window);
  Dims dims = window_dims(op, shape, w);
  std::vector<Type> results;
  for (const Value& x : operands) results.push_back(make_type(x.dtype(), dims, shape.bounds));
  int32_t region = combiner(impl_->graph, op, inits, body);
  return impl_->graph.emit("stablehlo.reduce_window", joined(operands, inits), results,
                           "base_dilations = " + array_attribute(w.base_dilation) +
                               ", padding = " + pairs_attribute(w.padding_low, w.padding_high) +
                               ", window_dilations = " + array_attribute(w.window_dilation) +
                               ", window_dimensions = " + array_attribute(w.sizes) +
                               ", window_strides = " + array_attribute(w.strides),
                           Form::kGeneric, {region});
}

Value Builder::select_and_scatter(const Value& operand, const Value& source, const Value& init,
                                  const Window& window, Compare select, Reduction scatter) {
  constexpr std::string_view op = "select_and_scatter";
  Graph& graph = impl_->graph;
  for (const Value* v : {&operand, &source, &init}) graph.check(op, *v);
  check_scalar(op, init, operand.dtype());
  check_static(op, operand);
  Window w = full_window(op, operand.type(), window);
  if (w.base_dilation != or_ones({}, w.sizes.size()) ||
      w.window_dilation != or_ones({}, w.sizes.size())) {
    fail(op, "no dilation", list_text(w.window_dilation));
  }
  Type expected(operand.dtype(), window_dims(op, operand.type(), w));
  if (source.type() != expected) fail(op, "a source of type " + expected.str(), source.type());
  Type scalar_type(operand.dtype(), {});
  int32_t select_region = graph.region(
      op, {scalar_type, scalar_type},
      [&](const Values& v) -> Values { return {compare(select, v[0], v[1])}; }, true);
  int32_t scatter_region =
      graph.region(op, {scalar_type, scalar_type}, reduction_body(op, *this, scatter), true);
  return graph.emit1("stablehlo.select_and_scatter", {operand, source, init}, operand.type(),
                     "padding = " + pairs_attribute(w.padding_low, w.padding_high) +
                         ", window_dimensions = " + array_attribute(w.sizes) +
                         ", window_strides = " + array_attribute(w.strides),
                     Form::kGeneric, {select_region, scatter_region});
}

}  // namespace torch_tpu::stablehlo
