// Builder: ops that move or repeat elements.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

// The indices of the dimensions that are not 1.
Dims wide_dims(const Dims& dims) {
  Dims out;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != 1) out.push_back(static_cast<int64_t>(i));
  }
  return out;
}

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
  Dims bounds;
  if (from.is_static()) {
    bool valid = product(from.dims) == product(dims);
    for (int64_t d : dims) valid = valid && d >= 0;
    if (!valid) fail("reshape", "as many elements as " + from.str(), list_text(dims));
  } else {
    // Only dimensions of size 1 may come and go: otherwise the valid part is not a box any more.
    Dims source = wide_dims(from.dims), target = wide_dims(dims);
    bool same = source.size() == target.size();
    bounds.assign(dims.size(), kDynamic);
    for (size_t i = 0; same && i < source.size(); ++i) {
      same = from.dims[source[i]] == dims[target[i]];
      if (same) bounds[target[i]] = bound_or_dynamic(from, source[i]);
    }
    if (!same)
      fail("reshape", "a bounded shape to change only in 1s, " + from.str(), list_text(dims));
  }
  return impl_->graph.emit1("stablehlo.reshape", {x}, make_type(from.dtype, dims, bounds), {},
                            Form::kFunctional);
}

Value Builder::broadcast_in_dim(const Value& x, const Dims& dims, const Dims& broadcast_dims) {
  constexpr std::string_view op = "broadcast_in_dim";
  impl_->graph.check(op, x);
  const Type& from = x.type();
  check_count(op, "broadcast dimensions for " + from.str(), from.rank(), broadcast_dims.size());
  check_dims(op, broadcast_dims, static_cast<int64_t>(dims.size()));
  Dims bounds(dims.size(), kDynamic);
  for (int64_t i = 0; i < from.rank(); ++i) {
    int64_t size = dims[broadcast_dims[i]];
    if (from.dims[i] != size && (from.dims[i] != 1 || size < 0)) {
      fail(op, "a shape that broadcasts to " + list_text(dims), from);
    }
    bounds[broadcast_dims[i]] = bound_or_dynamic(from, i);
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0 && (dims[i] != kDynamic || bounds[i] < 0)) {
      fail(op, "static or bounded result dimensions (broadcast_like takes sizes from a value)",
           list_text(dims));
    }
  }
  return impl_->graph.emit1("stablehlo.broadcast_in_dim", {x}, make_type(from.dtype, dims, bounds),
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
  Dims dims, bounds;
  bool identity = true;
  for (int64_t i = 0; i < from.rank(); ++i) {
    identity = identity && permutation[i] == i;
    dims.push_back(from.dims[permutation[i]]);
    bounds.push_back(bound_or_dynamic(from, permutation[i]));
  }
  if (identity) return x;
  return impl_->graph.emit1("stablehlo.transpose", {x}, make_type(from.dtype, dims, bounds),
                            ", dims = " + list_text(permutation), Form::kFunctional);
}

Value Builder::reverse(const Value& x, const Dims& dims) {
  impl_->graph.check("reverse", x);
  check_dims("reverse", dims, x.rank());
  for (int64_t d : dims) {
    if (is_dynamic(x.type(), d)) fail("reverse", "static dimensions to reverse", x.type());
  }
  if (dims.empty()) return x;
  return impl_->graph.emit1("stablehlo.reverse", {x}, x.type(),
                            "dimensions = " + array_attribute(dims));
}

Value Builder::slice(const Value& x, const Dims& starts, const Dims& limits, const Dims& strides) {
  impl_->graph.check("slice", x);
  const Type& from = x.type();
  check_count("slice", "start indices", from.rank(), starts.size());
  check_count("slice", "limit indices", from.rank(), limits.size());
  Dims steps = strides.empty() ? Dims(from.rank(), 1) : strides;
  check_count("slice", "strides", from.rank(), steps.size());
  Dims dims, bounds;
  bool whole = true;
  for (int64_t i = 0; i < from.rank(); ++i) {
    int64_t size = extent(from, i);
    if (starts[i] < 0 || starts[i] > limits[i] || limits[i] > size || steps[i] < 1) {
      fail("slice", "0 <= start <= limit <= " + std::to_string(size) + " and a positive stride",
           "start " + std::to_string(starts[i]) + ", limit " + std::to_string(limits[i]) +
               ", stride " + std::to_string(steps[i]));
    }
    bool all = starts[i] == 0 && limits[i] == size && steps[i] == 1;
    if (is_dynamic(from, i) && !all) fail("slice", "dynamic dimensions whole", from);
    whole = whole && all;
    dims.push_back(is_dynamic(from, i) ? kDynamic
                                       : (limits[i] - starts[i] + steps[i] - 1) / steps[i]);
    bounds.push_back(bound_or_dynamic(from, i));
  }
  if (whole) return x;
  return impl_->graph.emit1("stablehlo.slice", {x}, make_type(from.dtype, dims, bounds),
                            "limit_indices = " + array_attribute(limits) + ", start_indices = " +
                                array_attribute(starts) + ", strides = " + array_attribute(steps));
}

Value Builder::slice_dim(const Value& x, int64_t dim, int64_t start, int64_t limit,
                         int64_t stride) {
  impl_->graph.check("slice", x);
  check_dim("slice", dim, x.rank());
  Dims starts(x.rank(), 0), limits, strides(x.rank(), 1);
  for (int64_t i = 0; i < x.rank(); ++i) limits.push_back(extent(x.type(), i));
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
  Dims dims, bounds;
  bool none = true;
  for (int64_t i = 0; i < from.rank(); ++i) {
    bool kept = low[i] == 0 && high[i] == 0 && inner[i] == 0;
    none = none && kept;
    bounds.push_back(bound_or_dynamic(from, i));
    if (is_dynamic(from, i)) {
      if (!kept) fail("pad", "no padding of dynamic dimensions", from);
      dims.push_back(kDynamic);
      continue;
    }
    if (inner[i] < 0) fail("pad", "interior padding of at least 0", list_text(inner));
    int64_t size = from.dims[i];
    int64_t padded = low[i] + high[i] + size + (size > 0 ? (size - 1) * inner[i] : 0);
    if (padded < 0) fail("pad", "a result of at least 0 elements", std::to_string(padded));
    dims.push_back(padded);
  }
  if (none) return x;
  return impl_->graph.emit1(
      "stablehlo.pad", {x, padding_value}, make_type(from.dtype, dims, bounds),
      "edge_padding_high = " + array_attribute(high) + ", edge_padding_low = " +
          array_attribute(low) + ", interior_padding = " + array_attribute(inner));
}

Value Builder::concatenate(const Values& xs, int64_t dim) {
  constexpr std::string_view op = "concatenate";
  if (xs.empty()) fail(op, "at least one operand", "none");
  for (const Value& x : xs) {
    impl_->graph.check(op, x);
    check_dim(op, dim, x.rank());
    if (x.dtype() != xs[0].dtype() || x.rank() != xs[0].rank()) {
      fail(op, "operands of one dtype and rank", types_text(types_of(xs)));
    }
    if (is_dynamic(x.type(), dim)) fail(op, "a static dimension to concatenate", x.type());
  }
  Values parts = xs;
  // Bring dynamic sizes into the first operand, then from it into the others.
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 1; i < parts.size(); ++i) {
      for (int64_t d = 0; d < parts[0].rank(); ++d) {
        if (d != dim) unify_dim(op, parts[0], d, parts[i], d);
      }
    }
    if (parts[0].type().is_static()) break;
  }
  if (parts.size() == 1) return parts[0];
  Type type = parts[0].type();
  type.dims[dim] = 0;
  for (const Value& x : parts) type.dims[dim] += x.dims()[dim];
  return impl_->graph.emit1("stablehlo.concatenate", parts, type,
                            "dimension = " + int_attribute(dim));
}

Value Builder::dynamic_slice(const Value& x, const Values& starts, const Dims& sizes) {
  constexpr std::string_view op = "dynamic_slice";
  impl_->graph.check(op, x);
  for (const Value& s : starts) impl_->graph.check(op, s);
  check_static(op, x);
  check_indices(op, starts, x.rank());
  check_count(op, "slice sizes", x.rank(), sizes.size());
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (sizes[i] < 0 || sizes[i] > x.dims()[i]) {
      fail(op, "slice sizes within " + x.type().str(), list_text(sizes));
    }
  }
  if (sizes == x.dims()) return x;  // the starts are clamped to 0
  Values operands = {x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return impl_->graph.emit1("stablehlo.dynamic_slice", operands, Type(x.dtype(), sizes),
                            "slice_sizes = " + array_attribute(sizes));
}

Value Builder::dynamic_update_slice(const Value& x, const Value& update, const Values& starts) {
  constexpr std::string_view op = "dynamic_update_slice";
  impl_->graph.check(op, x);
  impl_->graph.check(op, update);
  for (const Value& s : starts) impl_->graph.check(op, s);
  check_static(op, x);
  check_static(op, update);
  check_indices(op, starts, x.rank());
  bool fits = update.dtype() == x.dtype() && update.rank() == x.rank();
  for (int64_t i = 0; fits && i < x.rank(); ++i) fits = update.dims()[i] <= x.dims()[i];
  if (!fits) fail(op, "an update within " + x.type().str(), update.type());
  Values operands = {x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return impl_->graph.emit1("stablehlo.dynamic_update_slice", operands, x.type());
}

}  // namespace torch_tpu::stablehlo
