// Builder: ops that move or repeat elements.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

void check_indices(std::string_view op, const Values& starts, int64_t rank) {
  check_count(op, "start indices", rank, starts.size());
  for (const Value& s : starts) {
    if (s.rank() != 0 || !is_integer(s.dtype())) fail(op, "a scalar integer index", s.type());
    if (s.dtype() != starts[0].dtype()) {
      fail(op, "start indices of one type", types_text(types_of(starts)));
    }
  }
}

}  // namespace

Value Builder::reshape(const Value& x, const Dims& dims) {
  impl_->graph.check("reshape", x);
  const Type& from = x.type();
  if (from.dims == dims) return x;
  bool valid = product(from.dims) == product(dims);
  for (int64_t d : dims) valid = valid && d >= 0;
  if (!valid) fail("reshape", "as many elements as " + from.str(), list_text(dims));
  Axes axes = from.is_static() ? Axes() : impl_->reshape_axes(from, dims);
  return impl_->graph.emit1("stablehlo.reshape", {x}, make_type(from.dtype, dims, std::move(axes)),
                            {}, Form::kFunctional);
}

// Merged dimensions keep their factors, so that splitting them again finds what varied.
Axes Builder::Impl::reshape_axes(const Type& from, const Dims& dims) {
  if (product(dims) == 0) return Axes(dims.size(), kWhole);
  Axis rest;  // factors of x, the first last
  for (int64_t d = from.rank(); d-- > 0;) {
    if (from.varies(d)) {
      const Axis& all = axes[static_cast<size_t>(from.axes[d])];
      rest.insert(rest.end(), all.rbegin(), all.rend());
    } else if (from.dims[d] != 1) {
      rest.push_back({from.dims[d], false, {}});
    }
  }
  Axes out;
  for (int64_t extent : dims) {
    Axis axis;
    int64_t need = extent;
    while (need != 1 && !rest.empty()) {
      Factor factor = rest.back();
      rest.pop_back();
      if (need % factor.extent == 0) {
        need /= factor.extent;
      } else if (!factor.varies && factor.extent % need == 0) {
        rest.push_back({factor.extent / need, false, {}});
        factor.extent = need;
        need = 1;
      } else if (const int64_t inner = factor.extent / need;
                 factor.extent % need == 0 && factor.size.divisible(inner)) {
        rest.push_back({inner, false, {}});  // the first n rows of `inner` each
        factor.extent = need;
        factor.size = factor.size / inner;
        need = 1;
      } else {
        unproven("reshape", "split into " + list_text(dims), from);
      }
      if (!axis.empty() && !axis.back().varies && !factor.varies) {
        axis.back().extent *= factor.extent;
      } else {
        axis.push_back(factor);
      }
    }
    out.push_back(intern(std::move(axis)));
  }
  for (const Factor& factor : rest) {
    if (factor.varies) unproven("reshape", "dropped", from);
  }
  return out;
}

Value Builder::broadcast_in_dim(const Value& x, const Dims& dims, const Dims& broadcast_dims) {
  constexpr std::string_view op = "broadcast_in_dim";
  impl_->graph.check(op, x);
  const Type& from = x.type();
  check_count(op, "broadcast dimensions for " + from.str(), from.rank(), broadcast_dims.size());
  check_dims(op, broadcast_dims, static_cast<int64_t>(dims.size()));
  Axes axes(dims.size(), kWhole);
  for (int64_t i = 0; i < from.rank(); ++i) {
    int64_t size = dims[broadcast_dims[i]];
    if (from.dims[i] != size && (from.dims[i] != 1 || size < 0)) {
      fail(op, "a shape that broadcasts to " + list_text(dims), from);
    }
    if (from.dims[i] != size && from.varies(i)) unproven(op, "of size 1", from);
    axes[broadcast_dims[i]] = axis_of(from, i);
  }
  check_type(op, Type(from.dtype, dims));
  return impl_->graph.emit1("stablehlo.broadcast_in_dim", {x},
                            make_type(from.dtype, dims, std::move(axes)),
                            ", dims = " + list_text(broadcast_dims), Form::kFunctional);
}

Value Builder::broadcast_to(const Value& x, const Dims& dims) {
  impl_->graph.check("broadcast_to", x);
  if (x.dims() == dims) return x;
  int64_t offset = static_cast<int64_t>(dims.size()) - x.rank();
  if (offset < 0) fail("broadcast_to", "a shape that broadcasts to " + list_text(dims), x.type());
  Dims map;
  for (int64_t i = 0; i < x.rank(); ++i) map.push_back(offset + i);
  return broadcast_in_dim(x, dims, map);
}

Value Builder::transpose(const Value& x, const Dims& permutation) {
  impl_->graph.check("transpose", x);
  const Type& from = x.type();
  check_count("transpose", "permutation entries for " + from.str(), from.rank(),
              permutation.size());
  check_dims("transpose", permutation, from.rank());
  Dims dims;
  Axes axes;
  bool identity = true;
  for (int64_t i = 0; i < from.rank(); ++i) {
    identity = identity && permutation[i] == i;
    dims.push_back(from.dims[permutation[i]]);
    axes.push_back(axis_of(from, permutation[i]));
  }
  if (identity) return x;
  return impl_->graph.emit1("stablehlo.transpose", {x},
                            make_type(from.dtype, std::move(dims), std::move(axes)),
                            ", dims = " + list_text(permutation), Form::kFunctional);
}

Value Builder::reverse(const Value& x, const Dims& dims) {
  impl_->graph.check("reverse", x);
  check_dims("reverse", dims, x.rank());
  if (dims.empty()) return x;
  Value out = impl_->graph.emit1("stablehlo.reverse", {x}, x.type(),
                                 "dimensions = " + array_attribute(dims));
  // What counts is now at the end: bring it to the front.
  for (int64_t d : dims) {
    if (!x.type().varies(d)) continue;
    const int32_t axis = axis_of(x.type(), d);
    const int64_t extent = x.dims()[d];
    const Size shift = impl_->prefix_size("reverse", x.type(), d) * -1 + extent;
    out = impl_->with_axis(out, d, kWhole);
    Dims high(x.rank(), 0);
    high[d] = extent;
    const Value zero = splat_int(0, Type(DType::kS32, {}));
    const Value longer = pad(out, splat(0, Type(x.dtype(), {})), Dims(x.rank(), 0), high);
    Values starts(x.rank(), zero);
    starts[d] = size_value(shift);
    out = impl_->with_axis(dynamic_slice(longer, starts, x.dims()), d, axis);
  }
  return out;
}

Value Builder::slice(const Value& x, const Dims& starts, const Dims& limits, const Dims& strides) {
  impl_->graph.check("slice", x);
  const Type& from = x.type();
  check_count("slice", "start indices", from.rank(), starts.size());
  check_count("slice", "limit indices", from.rank(), limits.size());
  Dims steps = strides.empty() ? Dims(from.rank(), 1) : strides;
  check_count("slice", "strides", from.rank(), steps.size());
  Dims dims;
  Axes axes;
  bool whole = true;
  for (int64_t i = 0; i < from.rank(); ++i) {
    int64_t size = from.dims[i];
    if (starts[i] < 0 || starts[i] > limits[i] || limits[i] > size || steps[i] < 1) {
      fail("slice", "0 <= start <= limit <= " + std::to_string(size) + " and a positive stride",
           "start " + std::to_string(starts[i]) + ", limit " + std::to_string(limits[i]) +
               ", stride " + std::to_string(steps[i]));
    }
    bool all = starts[i] == 0 && limits[i] == size && steps[i] == 1;
    whole = whole && all;
    dims.push_back((limits[i] - starts[i] + steps[i] - 1) / steps[i]);
    axes.push_back(axis_of(from, i));
    if (all || !from.varies(i)) continue;
    using Kind = Impl::Number::Kind;
    Size left = impl_->derived(Kind::kMin, impl_->prefix_size("slice", from, i), limits[i]);
    if (limits[i] == size) left = impl_->prefix_size("slice", from, i);
    if (starts[i] > 0) left = impl_->derived(Kind::kMax, left + -starts[i], 0);
    if (steps[i] > 1) left = impl_->derived(Kind::kFloorDiv, left + (steps[i] - 1), steps[i]);
    axes[i] = impl_->prefix(dims[i], left);
  }
  if (whole) return x;
  return impl_->graph.emit1("stablehlo.slice", {x}, make_type(from.dtype, dims, std::move(axes)),
                            "limit_indices = " + array_attribute(limits) + ", start_indices = " +
                                array_attribute(starts) + ", strides = " + array_attribute(steps));
}

Value Builder::slice_dim(const Value& x, int64_t dim, int64_t start, int64_t limit,
                         int64_t stride) {
  impl_->graph.check("slice", x);
  check_dim("slice", dim, x.rank());
  Dims starts(x.rank(), 0), limits, strides(x.rank(), 1);
  for (int64_t i = 0; i < x.rank(); ++i) limits.push_back(x.dims()[i]);
  starts[dim] = start;
  limits[dim] = limit;
  strides[dim] = stride;
  return slice(x, starts, limits, strides);
}

Value Builder::pad(const Value& x, const Value& padding_value, const Dims& low, const Dims& high,
                   const Dims& interior) {
  impl_->graph.check("pad", x);
  impl_->graph.check("pad", padding_value);
  const Type& from = x.type();
  check_scalar("pad", padding_value, from.dtype);
  Dims inner = interior.empty() ? Dims(from.rank(), 0) : interior;
  check_count("pad", "low paddings", from.rank(), low.size());
  check_count("pad", "high paddings", from.rank(), high.size());
  check_count("pad", "interior paddings", from.rank(), inner.size());
  Dims dims;
  Axes axes;
  Dims moved;  // dimensions that vary and get padding
  bool none = true;
  for (int64_t i = 0; i < from.rank(); ++i) {
    bool kept = low[i] == 0 && high[i] == 0 && inner[i] == 0;
    none = none && kept;
    if (inner[i] < 0) fail("pad", "interior padding of at least 0", list_text(inner));
    int64_t size = from.dims[i];
    int64_t padded = low[i] + high[i] + size + (size > 0 ? (size - 1) * inner[i] : 0);
    if (padded < 0) fail("pad", "a result of at least 0 elements", std::to_string(padded));
    dims.push_back(padded);
    axes.push_back(axis_of(from, i));
    if (!from.varies(i) || kept) continue;
    moved.push_back(i);
    const Size n = impl_->prefix_size("pad", from, i);
    // An empty dimension gets no interior padding; nobody knows here that this one is not.
    if (inner[i] != 0) unproven("pad", "with interior padding", from);
    Size longer = n + (low[i] + high[i]);
    if (low[i] < 0 || high[i] < 0) longer = impl_->derived(Impl::Number::Kind::kMax, longer, 0);
    axes[i] = impl_->prefix(padded, longer);
  }
  if (none) return x;
  const Value filled = fill_rest(x, padding_value, moved);
  return impl_->graph.emit1(
      "stablehlo.pad", {filled, padding_value}, make_type(from.dtype, dims, std::move(axes)),
      "edge_padding_high = " + array_attribute(high) + ", edge_padding_low = " +
          array_attribute(low) + ", interior_padding = " + array_attribute(inner));
}

Value Builder::concatenate(const Values& xs, int64_t dim) {
  constexpr std::string_view op = "concatenate";
  if (xs.empty()) fail(op, "at least one operand", "none");
  bool varies = false;
  for (const Value& x : xs) {
    impl_->graph.check(op, x);
    check_dim(op, dim, x.rank());
    if (x.dtype() != xs[0].dtype() || x.rank() != xs[0].rank()) {
      fail(op, "operands of one dtype and rank", types_text(types_of(xs)));
    }
    varies = varies || x.type().varies(dim);
  }
  Dims dims = xs[0].dims();
  Axes axes = axes_of(xs[0].type());
  axes[dim] = kWhole;
  for (size_t i = 1; i < xs.size(); ++i) {
    for (int64_t d = 0; d < xs[0].rank(); ++d) {
      if (d == dim) continue;
      unify_dim(op, xs[0], d, xs[i], d);
      axes[d] = join_axes(op, axes[d], axis_of(xs[i].type(), d), xs[i].type());
    }
    dims[dim] += xs[i].dims()[dim];
  }
  if (xs.size() == 1) return xs[0];
  if (!varies) {
    return impl_->graph.emit1("stablehlo.concatenate", xs,
                              make_type(xs[0].dtype(), std::move(dims), std::move(axes)),
                              "dimension = " + int_attribute(dim));
  }
  // One after the other: each covers what did not count of the one before.
  Dims high(xs[0].rank(), 0);
  high[dim] = dims[dim] - xs[0].dims()[dim];
  Value out = pad(impl_->with_axis(xs[0], dim, kWhole), splat(0, Type(xs[0].dtype(), {})),
                  Dims(xs[0].rank(), 0), high);
  Size total;
  for (size_t i = 0; i < xs.size(); ++i) {
    const Size size = xs[i].type().varies(dim) ? impl_->prefix_size(op, xs[i].type(), dim)
                                               : Size(xs[i].dims()[dim]);
    if (i > 0) {
      Values starts(xs[i].rank(), splat_int(0, Type(DType::kS32, {})));
      starts[dim] = size_value(total);
      Values operands = {out, xs[i]};
      operands.insert(operands.end(), starts.begin(), starts.end());
      out = impl_->graph.emit1("stablehlo.dynamic_update_slice", operands, Type(out.dtype(), dims));
    }
    total = total + size;
  }
  axes[dim] = impl_->prefix(dims[dim], total);
  for (int64_t d = 0; d < out.rank(); ++d) out = impl_->with_axis(out, d, axes[d]);
  return out;
}

Value Builder::dynamic_slice(const Value& x, const Values& starts, const Dims& sizes) {
  constexpr std::string_view op = "dynamic_slice";
  impl_->graph.check(op, x);
  for (const Value& s : starts) impl_->graph.check(op, s);
  check_indices(op, starts, x.rank());
  check_count(op, "slice sizes", x.rank(), sizes.size());
  Axes axes = axes_of(x.type());
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (sizes[i] < 0 || sizes[i] > x.dims()[i]) {
      fail(op, "slice sizes within " + x.type().str(), list_text(sizes));
    }
    // One element is the caller's choice, and must count. More may reach beyond what does.
    if (!x.type().varies(i) || sizes[i] == x.dims()[i]) continue;
    if (sizes[i] > 1) unproven(op, "sliced at a place known at run time", x.type());
    axes[i] = kWhole;
  }
  if (sizes == x.dims()) return x;  // the starts are clamped to 0
  Values operands = {x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return impl_->graph.emit1("stablehlo.dynamic_slice", operands,
                            make_type(x.dtype(), sizes, std::move(axes)),
                            "slice_sizes = " + array_attribute(sizes));
}

Value Builder::dynamic_update_slice(const Value& x, const Value& update, const Values& starts) {
  constexpr std::string_view op = "dynamic_update_slice";
  impl_->graph.check(op, x);
  impl_->graph.check(op, update);
  for (const Value& s : starts) impl_->graph.check(op, s);
  check_indices(op, starts, x.rank());
  bool fits = update.dtype() == x.dtype() && update.rank() == x.rank();
  for (int64_t i = 0; fits && i < x.rank(); ++i) fits = update.dims()[i] <= x.dims()[i];
  if (!fits) fail(op, "an update within " + x.type().str(), update.type());
  Axes axes = axes_of(x.type());
  Dims partial;  // of the update only what counts is written
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (update.dims()[i] == x.dims()[i]) {
      axes[i] = join_axes(op, axes[i], axis_of(update.type(), i), x.type());
    } else if (update.type().varies(i)) {
      partial.push_back(i);
    }
  }
  Values operands = {x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  const Type type = make_type(x.dtype(), x.dims(), std::move(axes));
  const Value written = impl_->graph.emit1("stablehlo.dynamic_update_slice", operands, type);
  if (partial.empty()) return written;
  Value mask;
  for (int64_t d : partial)
    mask = mask.defined() ? and_(mask, counts(update, d)) : counts(update, d);
  operands[0] = splat(0, Type(DType::kBool, x.dims()));
  operands[1] = mask;
  const Value inside =
      impl_->graph.emit1("stablehlo.dynamic_update_slice", operands, operands[0].type());
  return select(inside, written, x);
}

}  // namespace torch_tpu::stablehlo
