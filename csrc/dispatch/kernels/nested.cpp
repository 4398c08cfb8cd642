// Nested tensors with the strided layout: one buffer on the device; sizes, strides and offsets of
// the parts on the host. Most of PyTorch's kernels for them touch the buffer through ATen only and
// serve any device. Those that read memory are written here, over the parts as plain tensors.
// Jagged ones are Python's (torch/nested); what they need is in jagged.cpp.
#include <vector>

#include <ATen/NestedTensorImpl.h>
#include <ATen/native/nested/NestedTensorMath.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/_nested_compute_contiguous_strides_offsets_native.h>
#include <ATen/ops/_nested_tensor_from_mask_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

namespace torch_tpu::dispatch {
namespace {

using at::native::get_nested_tensor_impl;
using at::native::wrap_buffer;
using c10::IntArrayRef;

void call_host_kernel(const c10::OperatorHandle& op, c10::Stack* stack) {
  op.callBoxedForDispatchKey(c10::DispatchKey::NestedTensorCPU, *stack);
}

// Kernels that know a buffer and its metadata, and leave the arithmetic to the buffer's device.
constexpr const char* kDeviceNeutral[] = {
    "native_dropout",
    "native_dropout_backward",
    "abs",
    "abs_",
    "sgn",
    "sgn_",
    "add.Tensor",
    "add_.Tensor",
    "all.dim",
    "logical_not",
    "logical_not_",
    "cat",
    "chunk",
    "copy_",
    "cos",
    "div.Tensor",
    "div.Scalar",
    "embedding",
    "empty_like",
    "fill_.Scalar",
    "fill_.Tensor",
    "isnan",
    "is_same_size",
    "linear",
    "linear_backward",
    "matmul",
    "matmul_backward",
    "matmul.out",
    "value_selecting_reduction_backward",
    "mul.Tensor",
    "mul_.Tensor",
    "mul.Scalar",
    "mul_.Scalar",
    "narrow",
    "ones_like",
    "neg",
    "neg_",
    "relu",
    "relu_",
    "gelu",
    "gelu_",
    "gelu_backward",
    "select.int",
    "_nested_select_backward",
    "silu",
    "silu_",
    "silu_backward",
    "sin",
    "detach",
    "_softmax",
    "_softmax_backward_data",
    "split_with_sizes",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "sqrt",
    "tanh",
    "tanh_",
    "threshold_backward",
    "transpose.int",
    "_nested_tensor_size",
    "_nested_tensor_strides",
    "_nested_tensor_storage_offsets",
    "_nested_from_padded_and_nested_example",
    "unsqueeze",
    "where.self",
    "where.self_out",
    "clone",
    "zero_",
    "sub.Tensor",
    "values",
    "unbind.int",
    "_to_copy",
    "masked_fill.Scalar",
    "view",
    "eq.Scalar",
    "eq.Tensor",
    "ge.Scalar",
    "gt.Scalar",
    "normal_",
    "alias",
    "isinf",
    "isposinf",
    "isneginf",
    "_test_autograd_multiple_dispatch.fullcoverage",
    "_test_autograd_multiple_dispatch.ntonly",
    "to_padded_tensor",
    "_nested_tensor_softmax_with_shape",
    "_safe_softmax",
    "_transformer_encoder_layer_fwd",  // of layer norm, linear and attention
};

// The parts one after the other, as the buffer of a nested tensor with these sizes.
at::Tensor nested_of(const std::vector<at::Tensor>& parts, const at::Tensor& sizes) {
  std::vector<at::Tensor> flat;
  flat.reserve(parts.size());
  for (const at::Tensor& part : parts) flat.push_back(part.reshape({-1}));
  return wrap_buffer(at::cat(flat), sizes);
}

at::Tensor rows_of(const at::Tensor& nested, int64_t rows, IntArrayRef shape) {
  std::vector<int64_t> dims = {rows};
  dims.insert(dims.end(), shape.begin(), shape.end());
  return get_nested_tensor_impl(nested)->get_buffer().view(dims);
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Three layer_norm(const at::Tensor& input, IntArrayRef shape,
                 const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                 double eps) {
  TORCH_CHECK_VALUE(weight && bias, "NestedTensor layer_norm requires weight and bias");
  TORCH_CHECK(!weight->is_nested(), "NestedTensor weight not supported for layer_norm");
  TORCH_CHECK(!bias->is_nested(), "NestedTensor bias not supported for layer_norm");
  const auto* nested = get_nested_tensor_impl(input);
  const int64_t rows =
      at::native::_check_nested_layer_norm_inputs(*nested, shape, *weight, *bias).first;
  const auto [out, mean, rstd] =
      at::native_layer_norm(rows_of(input, rows, shape), shape, weight, bias, eps);
  return {wrap_buffer(out.reshape({-1}), nested->get_nested_sizes()), mean.reshape({rows}),
          rstd.reshape({rows})};
}

Three layer_norm_backward(const at::Tensor& grad, const at::Tensor& input, IntArrayRef shape,
                          const at::Tensor& mean, const at::Tensor& rstd,
                          const std::optional<at::Tensor>& weight,
                          const std::optional<at::Tensor>& bias, std::array<bool, 3> mask) {
  TORCH_CHECK_VALUE(weight && bias, "NestedTensor layer_norm requires weight and bias");
  const auto* nested = get_nested_tensor_impl(input);
  const int64_t rows =
      at::native::_check_nested_layer_norm_inputs(*nested, shape, *weight, *bias).first;
  std::vector<int64_t> statistics(shape.size() + 1, 1);
  statistics[0] = rows;
  auto [in, gamma, beta] = at::native_layer_norm_backward(
      rows_of(grad.contiguous(), rows, shape), rows_of(input, rows, shape), shape,
      mean.reshape(statistics), rstd.reshape(statistics), weight, bias, mask);
  if (in.defined()) in = wrap_buffer(in.reshape({-1}), nested->get_nested_sizes());
  return {in, gamma, beta};
}

at::Tensor sum_dim(const at::Tensor& self, c10::OptionalIntArrayRef dims, bool keepdim,
                   std::optional<c10::ScalarType> dtype) {
  TORCH_CHECK(dims && dims->size() == 1,
              "NestedTensor only allows reduction of a single dimension for now.");
  const int64_t dim = c10::maybe_wrap_dim((*dims)[0], self.dim());
  TORCH_CHECK(dim == self.dim() - 1,
              "NestedTensor can only be reduced across the last dimension for now ",
              "got dimension ", dim, " instead.");
  TORCH_CHECK(keepdim, "NestedTensor always requires keepdim=True for now.");
  TORCH_CHECK(!dtype, "NestedTensor does not support dtype argument for now.");
  const auto* nested = get_nested_tensor_impl(self);
  TORCH_CHECK(at::native::nested_tensor_impl_is_contiguous(nested),
              "NestedTensor does not support reductions when the input is noncontiguous for now.");
  if (nested->size(0) == 0) return self;
  std::vector<at::Tensor> sums;
  for (const at::Tensor& part : self.unbind()) {
    sums.push_back(at::sum(part, -1, /*keepdim=*/true, self.scalar_type()));
  }
  at::Tensor sizes = nested->get_nested_sizes().clone();
  sizes.select(1, -1).fill_(1);
  return nested_of(sums, sizes);
}

at::Tensor sum_backward(const at::Tensor& grad, const at::Tensor& self,
                        c10::OptionalIntArrayRef /*dims*/, bool /*keepdim*/) {
  const std::vector<at::Tensor> grads = grad.contiguous().unbind();
  const std::vector<at::Tensor> parts = self.unbind();
  std::vector<at::Tensor> spread;
  for (size_t i = 0; i < parts.size(); ++i) spread.push_back(grads[i].expand_as(parts[i]));
  const at::Tensor& sizes = get_nested_tensor_impl(self)->get_nested_sizes();
  if (spread.empty()) return wrap_buffer(get_nested_tensor_impl(self)->get_buffer().clone(), sizes);
  return nested_of(spread, sizes);
}

at::Tensor bmm(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.dim() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(other.dim() == 3, "batch2 must be a 3D tensor");
  const std::vector<at::Tensor> left = self.unbind();
  const std::vector<at::Tensor> right = other.unbind();
  TORCH_CHECK(left.size() == right.size(),
              "Expected size for the 1st dimension of batch2 tensor to be: ", left.size(),
              " but got: ", right.size(), ".");
  at::Tensor sizes = at::empty({static_cast<int64_t>(left.size()), 2}, at::kLong);
  int64_t* size = sizes.mutable_data_ptr<int64_t>();
  std::vector<at::Tensor> products;
  for (size_t i = 0; i < left.size(); ++i) {
    const at::Tensor &a = left[i], &b = right[i];
    TORCH_CHECK(a.size(1) == b.size(0), i, "-th nested matrices in batch cannot be multiplied (",
                a.size(0), "x", a.size(1), " and ", b.size(0), "x", b.size(1), ")");
    products.push_back(at::mm(a, b));
    *size++ = a.size(0);
    *size++ = b.size(1);
  }
  if (products.empty()) {
    const at::Tensor& nested = self.is_nested() ? self : other;
    return wrap_buffer(nested.values().new_empty({0}), sizes);
  }
  return nested_of(products, sizes);
}

// Each part is a corner of its padded row.
at::Tensor from_padded(const at::Tensor& padded, const at::Tensor& sizes, bool transform_0213) {
  at::Tensor rows = padded;
  if (transform_0213) {
    rows = padded.permute({0, 2, 1, 3})
               .reshape({padded.size(0), padded.size(2), padded.size(1) * padded.size(3)});
  }
  TORCH_CHECK(rows.dim() - 1 == sizes.size(1), "dim: ", rows.dim(), "target_size: ", sizes.size(1));
  const at::Tensor lengths = sizes.contiguous();
  const int64_t* length = lengths.const_data_ptr<int64_t>();
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < sizes.size(0); ++i) {
    at::Tensor part = rows.select(0, i);
    for (int64_t dim = 0; dim < part.dim(); ++dim) part = part.narrow(dim, 0, *length++);
    parts.push_back(part);
  }
  if (parts.empty()) return wrap_buffer(padded.new_empty({0}), sizes);
  return nested_of(parts, sizes);
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  for (const char* name : kDeviceNeutral) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_host_kernel>());
  }
  m.impl("native_layer_norm", TORCH_FN(layer_norm));
  m.impl("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
  m.impl("sum.dim_IntList", TORCH_FN(sum_dim));
  m.impl("_nested_sum_backward", TORCH_FN(sum_backward));
  m.impl("bmm", TORCH_FN(bmm));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_view_from_buffer", TORCH_FN(at::native::_nested_view_from_buffer));
  m.impl("_nested_compute_contiguous_strides_offsets",
         TORCH_FN(at::native::_nested_compute_contiguous_strides_offsets));
  m.impl("_nested_tensor_from_mask", TORCH_FN(at::native::NestedTensor_nested_tensor_from_mask));
  m.impl("_nested_from_padded", TORCH_FN(from_padded));
}

}  // namespace
}  // namespace torch_tpu::dispatch
