// Builder: reductions and window ops.
#include <algorithm>

#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

Dims or_ones(const Dims& values, size_t count) { return values.empty() ? Dims(count, 1) : values; }

Type check_inits(Graph& graph, std::string_view op, const Values& xs, const Values& inits) {
  if (xs.empty()) fail(op, "at least one operand", "none");
  check_count(op, "init values", xs.size(), inits.size());
  for (size_t i = 0; i < xs.size(); ++i) {
    graph.check(op, xs[i]);
    graph.check(op, inits[i]);
    check_scalar(op, inits[i], xs[i].dtype());
  }
  return unify_shapes(op, xs);
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

Dims window_dims(const Type& x, const Window& w) {
  Dims dims;
  for (size_t i = 0; i < x.dims.size(); ++i) dims.push_back(window_count(x.dims[i], w, i));
  return dims;
}

bool is_trivial(const Window& w, size_t i) {
  return w.sizes[i] == 1 && w.strides[i] == 1 && w.padding_low[i] == 0 && w.padding_high[i] == 0 &&
         w.base_dilation[i] == 1;
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

int32_t Builder::Impl::window_axis(std::string_view op, const Type& x, int64_t dim, int64_t extent,
                                   int64_t reach, int64_t stride, int64_t padding,
                                   int64_t base_dilation) {
  Size n = prefix_size(op, x, dim);
  if (base_dilation != 1) n = n * base_dilation + (1 - base_dilation);
  // (n + padding - reach) / stride + 1, and none where the window is longer than that.
  const Size places = n + (padding - reach + stride);
  // Only a window that is longer than its padding can find nothing at all.
  const bool always = padding - reach + stride >= 0;
  const Size some = always ? places : derived(Number::Kind::kMax, places, 0);
  return prefix(extent, derived(Number::Kind::kFloorDiv, some, stride));
}

Value Builder::reduce(const Value& x, const Value& init, const Dims& dims, Reduction kind) {
  return reduce({x}, {init}, dims, reduction_body("reduce", *this, kind))[0];
}

namespace {

// XLA:CPU gives large reductions to a library that takes 8 dimensions and writes beyond its memory
// with more.
constexpr int64_t kMostReducedRank = 8;

// The kept dimensions first, as one, then those reduced, as another; so that XLA does not take them
// apart again.
Value as_rows(Builder& b, const Value& x, const Dims& kept, const Dims& dims) {
  Dims order = kept;
  order.insert(order.end(), dims.begin(), dims.end());
  Dims two = {1, 1};
  for (int64_t d : kept) two[0] *= x.dim(d);
  for (int64_t d : dims) two[1] *= x.dim(d);
  return b.optimization_barrier({b.reshape(b.transpose(x, order), two)})[0];
}

}  // namespace

Values Builder::reduce(const Values& xs, const Values& inits, const Dims& dims,
                       const Region& body) {
  if (!xs.empty() && xs[0].rank() > kMostReducedRank && xs[0].type().is_static()) {
    Dims kept, sizes;
    for (int64_t d = 0; d < xs[0].rank(); ++d) {
      if (std::find(dims.begin(), dims.end(), d) != dims.end()) continue;
      kept.push_back(d);
      sizes.push_back(xs[0].dim(d));
    }
    Values rows;
    for (const Value& x : xs) rows.push_back(as_rows(*this, x, kept, dims));
    Values results = reduce(rows, inits, {1}, body);
    for (Value& result : results) result = reshape(result, sizes);
    return results;
  }
  Values operands = xs;
  const Type shape = check_inits(impl_->graph, "reduce", operands, inits);
  check_dims("reduce", dims, shape.rank());
  if (dims.empty()) return xs;
  std::vector<bool> gone(shape.rank(), false);
  for (int64_t d : dims) gone[d] = true;
  Dims kept;
  Axes axes;
  for (int64_t d = 0; d < shape.rank(); ++d) {
    if (gone[d]) continue;
    kept.push_back(shape.dims[d]);
    axes.push_back(axis_of(shape, d));
  }
  std::vector<Type> results;
  for (const Value& x : operands) results.push_back(make_type(x.dtype(), kept, axes));
  for (size_t i = 0; i < operands.size() && !shape.is_static(); ++i) {
    for (int64_t d : dims) operands[i] = impl_->with_axis(operands[i], d, axis_of(shape, d));
    operands[i] = fill_rest(operands[i], inits[i], dims);
  }
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
  const Type shape = check_inits(impl_->graph, op, operands, inits);
  Window w = full_window(op, shape, window);
  Dims dims = window_dims(shape, w);
  Axes axes = axes_of(shape);
  for (int64_t d = 0; d < shape.rank(); ++d) {
    if (!shape.varies(d) || is_trivial(w, d)) continue;
    axes[d] =
        impl_->window_axis(op, shape, d, dims[d], (w.sizes[d] - 1) * w.window_dilation[d] + 1,
                           w.strides[d], w.padding_low[d] + w.padding_high[d], w.base_dilation[d]);
    for (size_t i = 0; i < operands.size(); ++i) {
      operands[i] = fill_rest(impl_->with_axis(operands[i], d, axis_of(shape, d)), inits[i], {d});
    }
  }
  std::vector<Type> results;
  for (const Value& x : operands) results.push_back(make_type(x.dtype(), dims, axes));
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
  Window w = full_window(op, operand.type(), window);
  if (w.base_dilation != or_ones({}, w.sizes.size()) ||
      w.window_dilation != or_ones({}, w.sizes.size())) {
    fail(op, "no dilation", list_text(w.window_dilation));
  }
  Type expected(operand.dtype(), window_dims(operand.type(), w));
  if (source.dtype() != expected.dtype || source.dims() != expected.dims) {
    fail(op, "a source of type " + expected.str(), source.type());
  }
  Axes axes = axes_of(operand.type());
  for (int64_t d = 0; d < operand.rank(); ++d) {
    if (!operand.type().varies(d) && !source.type().varies(d)) continue;
    if (!is_trivial(w, d)) unproven(op, "under a window", operand.type());
    axes[d] = unify_dim(op, operand, d, source, d);
  }
  Type scalar_type(operand.dtype(), {});
  int32_t select_region = graph.region(
      op, {scalar_type, scalar_type},
      [&](const Values& v) -> Values { return {compare(select, v[0], v[1])}; }, true);
  int32_t scatter_region =
      graph.region(op, {scalar_type, scalar_type}, reduction_body(op, *this, scatter), true);
  return graph.emit1("stablehlo.select_and_scatter", {operand, source, init},
                     make_type(operand.dtype(), operand.dims(), std::move(axes)),
                     "padding = " + pairs_attribute(w.padding_low, w.padding_high) +
                         ", window_dimensions = " + array_attribute(w.sizes) +
                         ", window_strides = " + array_attribute(w.strides),
                     Form::kGeneric, {select_region, scatter_region});
}

}  // namespace torch_tpu::stablehlo
