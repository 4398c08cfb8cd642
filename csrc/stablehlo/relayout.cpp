// Builder: moving what counts along a dimension to other places. See axis.h.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

int64_t extent_of(const Axis& axis) {
  int64_t product = 1;
  for (const Factor& factor : axis) product *= factor.extent;
  return product;
}

// What counts comes first and lies together.
bool is_prefix(const Axis& axis) {
  for (size_t i = 1; i < axis.size(); ++i) {
    if (axis[i].varies) return false;
  }
  return true;
}

}  // namespace

Value Builder::relayout(const Value& x, int64_t dim, const Axis& to) {
  constexpr std::string_view op = "relayout";
  impl_->graph.check(op, x);
  check_dim(op, dim, x.rank());
  const int64_t extent = x.dims()[dim];
  if (extent_of(to) != extent) unproven(op, "another extent", x.type());
  const Axis from = x.type().varies(dim) ? axis(x, dim) : Axis{{extent, false, {}}};
  if (from == to) return x;
  if (size_of(from) != size_of(to)) unproven(op, "another size", x.type());
  if (is_prefix(from) && is_prefix(to)) return impl_->with_axis(x, dim, impl_->intern(to));
  const Type type(DType::kS32, {extent});
  const auto constant = [&](int64_t value) { return splat_int(value, type); };
  const auto size = [&](const Factor& factor) {
    return broadcast_to(size_value(factor.varies ? factor.size : Size(factor.extent)), {extent});
  };
  // Which element in the true order stands at each place of the result ...
  Value place = iota(type, 0), order = constant(0), step = constant(1);
  for (size_t i = to.size(); i-- > 0;) {
    const Value here = i == 0 ? place : remainder(place, constant(to[i].extent));
    order = add(order, multiply(here, step));
    if (i == 0) break;
    place = divide(place, constant(to[i].extent));
    step = multiply(step, size(to[i]));
  }
  // ... and where that is in x. What does not count in the result may come from anywhere.
  Value at = constant(0);
  int64_t stride = 1;
  for (size_t i = from.size(); i-- > 0;) {
    const Value n = size(from[i]);
    const Value here = i == 0 ? order : remainder(order, n);
    at = add(at, multiply(here, constant(stride)));
    if (i == 0) break;
    order = divide(order, n);
    stride *= from[i].extent;
  }
  at = minimum(at, constant(extent - 1));
  GatherDims dims;
  Dims slices = x.dims();
  slices[dim] = 1;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (d != dim) dims.offset_dims.push_back(d);
  }
  dims.collapsed_slice_dims = dims.start_index_map = {dim};
  dims.index_vector_dim = 1;
  const Value moved =
      gather(impl_->with_axis(x, dim, kWhole), reshape(at, {extent, 1}), dims, slices);
  return impl_->with_axis(moved, dim, impl_->intern(to));
}

Value Builder::pack(const Value& x, int64_t dim) {
  if (!x.type().varies(dim) || axis(x, dim).size() == 1) return x;
  return relayout(x, dim, {{x.dims()[dim], true, size_of(axis(x, dim))}});
}

}  // namespace torch_tpu::stablehlo
