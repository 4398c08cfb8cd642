// Builder: dot_general and convolution.
#include <algorithm>

#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

std::string_view precision_name(Precision precision) {
  switch (precision) {
    case Precision::kHigh:
      return "HIGH";
    case Precision::kHighest:
      return "HIGHEST";
    default:
      return "DEFAULT";
  }
}

Dims together(const Dims& a, const Dims& b) {
  Dims out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

void check_result_dtype(std::string_view op, const Value& a, const Value& b, DType result) {
  bool same_kind = is_complex(a.dtype()) == is_complex(b.dtype()) &&
                   is_complex(a.dtype()) == is_complex(result) &&
                   is_float(a.dtype()) == is_float(b.dtype()) &&
                   is_float(a.dtype()) == is_float(result);
  // XLA takes two dtypes only where both are 8-bit floats.
  bool mixed = a.dtype() != b.dtype() &&
               !(is_float(a.dtype()) && dtype_bytes(a.dtype()) == 1 && dtype_bytes(b.dtype()) == 1);
  if (!same_kind || mixed) {
    fail(op, "operands of one dtype and a result of their kind",
         types_text(types_of({a, b})) + " -> " + std::string(dtype_name(result)));
  }
}

}  // namespace

Value Builder::dot_general(const Value& a, const Value& b, const DotDims& dims, DType result_dtype,
                           Precision precision) {
  constexpr std::string_view op = "dot_general";
  impl_->graph.check(op, a);
  impl_->graph.check(op, b);
  check_result_dtype(op, a, b, result_dtype);
  check_count(op, "rhs batch dimensions", dims.lhs_batch.size(), dims.rhs_batch.size());
  check_count(op, "rhs contracting dimensions", dims.lhs_contracting.size(),
              dims.rhs_contracting.size());
  Dims lhs_used = together(dims.lhs_batch, dims.lhs_contracting);
  Dims rhs_used = together(dims.rhs_batch, dims.rhs_contracting);
  check_dims(op, lhs_used, a.rank());
  check_dims(op, rhs_used, b.rank());
  Dims out;
  Axes axes;
  auto keep_free = [&](const Type& type, const Dims& used) {
    for (int64_t d = 0; d < type.rank(); ++d) {
      if (std::find(used.begin(), used.end(), d) != used.end()) continue;
      out.push_back(type.dims[d]);
      axes.push_back(axis_of(type, d));
    }
  };
  for (size_t i = 0; i < dims.lhs_batch.size(); ++i) {
    axes.push_back(unify_dim(op, a, dims.lhs_batch[i], b, dims.rhs_batch[i]));
    out.push_back(a.dims()[dims.lhs_batch[i]]);
  }
  keep_free(a.type(), lhs_used);
  keep_free(b.type(), rhs_used);
  // Zeros on both sides: what does not count may be NaN.
  Value lhs = a, rhs = b;
  for (size_t i = 0; i < dims.lhs_contracting.size(); ++i) {
    const int64_t l = dims.lhs_contracting[i], r = dims.rhs_contracting[i];
    const int32_t axis = unify_dim(op, a, l, b, r);
    lhs = impl_->with_axis(lhs, l, axis);
    rhs = impl_->with_axis(rhs, r, axis);
  }
  if (!a.type().is_static() || !b.type().is_static()) {
    lhs = fill_rest(lhs, scalar(0, lhs.dtype()), dims.lhs_contracting);
    rhs = fill_rest(rhs, scalar(0, rhs.dtype()), dims.rhs_contracting);
  }

  std::string text;
  if (!dims.lhs_batch.empty()) {
    text += ", batching_dims = " + list_text(dims.lhs_batch) + " x " + list_text(dims.rhs_batch);
  }
  text += ", contracting_dims = " + list_text(dims.lhs_contracting) + " x " +
          list_text(dims.rhs_contracting);
  std::string_view name = precision_name(precision);
  text.append(", precision = [").append(name).append(", ").append(name).append("]");
  return impl_->graph.emit1("stablehlo.dot_general", {lhs, rhs},
                            make_type(result_dtype, std::move(out), std::move(axes)),
                            std::move(text), Form::kFunctional);
}

namespace {

// [b, f, 0, 1]: the role of every dimension.
std::string layout_text(std::string_view op, int64_t rank, int64_t first, char first_role,
                        int64_t second, char second_role, const Dims& spatial) {
  std::vector<std::string> roles(rank);
  Dims all = {first, second};
  all.insert(all.end(), spatial.begin(), spatial.end());
  check_count(op, "dimension numbers", rank, all.size());
  check_dims(op, all, rank);
  roles[first] = first_role;
  roles[second] = second_role;
  for (size_t i = 0; i < spatial.size(); ++i) roles[spatial[i]] = std::to_string(i);
  std::string out = "[";
  for (int64_t i = 0; i < rank; ++i) {
    if (i > 0) out += ", ";
    out += roles[i];
  }
  return out += ']';
}

std::string reversal_attribute(const std::vector<bool>& reversal) {
  std::string out = reversal.empty() ? "array<i1" : "array<i1: ";
  for (size_t i = 0; i < reversal.size(); ++i) {
    if (i > 0) out += ", ";
    out += reversal[i] ? "true" : "false";
  }
  return out += '>';
}

}  // namespace

Value Builder::convolution(const Value& x, const Value& kernel, const Window& window,
                           const ConvDims& dims, int64_t feature_groups, int64_t batch_groups,
                           DType result_dtype, Precision precision) {
  constexpr std::string_view op = "convolution";
  impl_->graph.check(op, x);
  impl_->graph.check(op, kernel);
  check_result_dtype(op, x, kernel, result_dtype);
  int64_t rank = x.rank();
  if (rank < 2 || kernel.rank() != rank) {
    fail(op, "operands of one rank of at least 2", types_text(types_of({x, kernel})));
  }
  std::string numbers =
      layout_text(op, rank, dims.input_batch, 'b', dims.input_feature, 'f', dims.input_spatial) +
      "x" +
      layout_text(op, rank, dims.kernel_output_feature, 'o', dims.kernel_input_feature, 'i',
                  dims.kernel_spatial) +
      "->" +
      layout_text(op, rank, dims.output_batch, 'b', dims.output_feature, 'f', dims.output_spatial);

  size_t spatial = rank - 2;
  Window w = window;
  auto fill = [&](Dims& part, int64_t value) {
    if (part.empty()) part.assign(spatial, value);
    check_count(op, "window entries", spatial, part.size());
  };
  fill(w.strides, 1);
  fill(w.base_dilation, 1);
  fill(w.window_dilation, 1);
  fill(w.padding_low, 0);
  fill(w.padding_high, 0);
  if (w.reversal.empty()) w.reversal.assign(spatial, false);
  check_count(op, "reversal entries", spatial, w.reversal.size());

  const Type& from = x.type();
  const bool merged =
      (feature_groups != 1 &&
       (from.varies(dims.input_feature) || kernel.type().varies(dims.kernel_output_feature))) ||
      (batch_groups != 1 &&
       (from.varies(dims.input_batch) || kernel.type().varies(dims.kernel_output_feature)));
  if (merged) unproven(op, "in groups", from);
  int64_t features = from.dims[dims.input_feature];
  int64_t out_features = kernel.dims()[dims.kernel_output_feature];
  bool grouped = feature_groups > 0 && batch_groups > 0 &&
                 (feature_groups == 1 || batch_groups == 1) &&
                 features == kernel.dims()[dims.kernel_input_feature] * feature_groups &&
                 out_features % feature_groups == 0 && out_features % batch_groups == 0 &&
                 from.dims[dims.input_batch] % batch_groups == 0;
  if (!grouped) {
    fail(op,
         "features and groups (" + std::to_string(feature_groups) + ", " +
             std::to_string(batch_groups) + ") that match",
         types_text(types_of({x, kernel})));
  }

  Dims out(rank);
  Axes axes(rank, kWhole);
  out[dims.output_batch] = from.dims[dims.input_batch] / batch_groups;
  axes[dims.output_batch] = axis_of(from, dims.input_batch);
  out[dims.output_feature] = out_features;
  axes[dims.output_feature] = axis_of(kernel.type(), dims.kernel_output_feature);
  for (size_t i = 0; i < spatial; ++i) {
    if (w.strides[i] < 1 || w.base_dilation[i] < 1 || w.window_dilation[i] < 1) {
      fail(op, "positive strides and dilations",
           list_text({w.strides[i], w.base_dilation[i], w.window_dilation[i]}));
    }
    int64_t size = from.dims[dims.input_spatial[i]];
    int64_t taps = kernel.dims()[dims.kernel_spatial[i]];
    int64_t padded = (size == 0 ? 0 : (size - 1) * w.base_dilation[i] + 1) + w.padding_low[i] +
                     w.padding_high[i];
    int64_t reach = taps == 0 ? 0 : (taps - 1) * w.window_dilation[i] + 1;
    const int64_t count = padded < reach ? 0 : (padded - reach) / w.strides[i] + 1;
    out[dims.output_spatial[i]] = count;
    if (!from.varies(dims.input_spatial[i])) continue;
    // Where the window varies too, its number of places does not (the gradient of a kernel).
    if (kernel.type().varies(dims.kernel_spatial[i])) continue;
    axes[dims.output_spatial[i]] =
        impl_->window_axis(op, from, dims.input_spatial[i], count, reach, w.strides[i],
                           w.padding_low[i] + w.padding_high[i], w.base_dilation[i]);
  }
  Value lhs = x, rhs = kernel;
  if (!from.is_static() || !kernel.type().is_static()) {
    Dims met = dims.input_spatial, taps = dims.kernel_spatial;
    met.push_back(dims.input_feature);
    taps.push_back(dims.kernel_input_feature);
    if (feature_groups == 1) {
      const int32_t axis = unify_dim(op, x, dims.input_feature, kernel, dims.kernel_input_feature);
      lhs = impl_->with_axis(lhs, dims.input_feature, axis);
      rhs = impl_->with_axis(rhs, dims.kernel_input_feature, axis);
    }
    lhs = fill_rest(lhs, scalar(0, lhs.dtype()), met);
    rhs = fill_rest(rhs, scalar(0, rhs.dtype()), taps);
  }
  std::string name(precision_name(precision));
  std::string text = "batch_group_count = " + int_attribute(batch_groups) +
                     ", dimension_numbers = #stablehlo.conv<" + numbers +
                     ">, feature_group_count = " + int_attribute(feature_groups) +
                     ", lhs_dilation = " + array_attribute(w.base_dilation) +
                     ", padding = " + pairs_attribute(w.padding_low, w.padding_high) +
                     ", precision_config = [#stablehlo<precision " + name +
                     ">, #stablehlo<precision " + name +
                     ">], rhs_dilation = " + array_attribute(w.window_dilation) +
                     ", window_reversal = " + reversal_attribute(w.reversal) +
                     ", window_strides = " + array_attribute(w.strides);
  return impl_->graph.emit1("stablehlo.convolution", {lhs, rhs},
                            make_type(result_dtype, std::move(out), std::move(axes)),
                            std::move(text));
}

}  // namespace torch_tpu::stablehlo
