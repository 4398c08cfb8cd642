// The layers of nn.MultiheadAttention and nn.TransformerEncoderLayer over strided nested tensors
// [batch, *, E]: all tokens at once through the projections, attention within each sequence.
#include <ATen/NestedTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_native_multi_head_attention.h>
#include <ATen/ops/_nested_from_padded.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <torch/library.h>

namespace torch_tpu::dispatch {
namespace {

using at::native::get_nested_tensor_impl;
using at::native::wrap_buffer;

at::Tensor tokens_of(const at::Tensor& nested, int64_t width) {
  const auto* impl = get_nested_tensor_impl(nested);
  TORCH_CHECK(impl->opt_size(2) == width, "expected the last dimension of a nested input to be ",
              width, " everywhere");
  return impl->get_buffer().view({-1, width});
}

at::Tensor lengths_of(const at::Tensor& nested) {
  return get_nested_tensor_impl(nested)->get_nested_sizes().select(1, 0);
}

// Where each sequence begins, and the last one ends; on the device.
at::Tensor starts_of(const at::Tensor& nested) {
  const at::Tensor lengths = lengths_of(nested);
  at::Tensor starts = at::zeros({lengths.size(0) + 1}, at::kInt);
  starts.narrow(0, 1, lengths.size(0)).copy_(lengths.cumsum(0));
  return starts.to(nested.device());
}

using Two = std::tuple<at::Tensor, at::Tensor>;

// With the weights as a result: they are padded, so all of it is.
Two attend_padded(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  int64_t width, int64_t heads, const at::Tensor& qkv_weight,
                  const at::Tensor& qkv_bias, const at::Tensor& proj_weight,
                  const at::Tensor& proj_bias, bool average) {
  const auto padded = [](const at::Tensor& x) { return x.to_padded_tensor(0); };
  const auto beyond = [](const at::Tensor& x, int64_t longest) {
    return at::arange(longest).unsqueeze(0).ge(lengths_of(x).unsqueeze(1)).to(x.device());
  };
  const at::Tensor q = padded(query), k = padded(key);
  const at::Tensor mask = beyond(key, k.size(1));
  const auto [out, weights] = at::_native_multi_head_attention(
      q, k, padded(value), width, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask,
      /*need_weights=*/true, average, /*mask_type=*/1);
  at::Tensor rows = beyond(query, q.size(1)).unsqueeze(-1);
  if (!average) rows = rows.unsqueeze(1);
  return {at::_nested_from_padded(out, get_nested_tensor_impl(query)->get_nested_sizes()),
          weights.masked_fill(rows, 0)};
}

Two multi_head_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         int64_t width, int64_t heads, const at::Tensor& qkv_weight,
                         const at::Tensor& qkv_bias, const at::Tensor& proj_weight,
                         const at::Tensor& proj_bias, const std::optional<at::Tensor>& mask,
                         bool need_weights, bool average, std::optional<int64_t> /*mask_type*/) {
  TORCH_CHECK(!mask || !mask->defined(), "NestedTensor with mask is not supported yet");
  TORCH_CHECK(query.is_nested() && key.is_nested() && value.is_nested(),
              "query, key and value must be nested alike");
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  TORCH_CHECK(width % heads == 0, "`embed_dim` must divide evenly by `num_heads`");
  if (need_weights) {
    return attend_padded(query, key, value, width, heads, qkv_weight, qkv_bias, proj_weight,
                         proj_bias, average);
  }
  const std::vector<at::Tensor> weights = qkv_weight.chunk(3, 0), biases = qkv_bias.chunk(3, 0);
  const auto project = [&](const at::Tensor& x, size_t i) {
    return at::linear(tokens_of(x, width), weights[i], biases[i]).view({-1, heads, width / heads});
  };
  const at::Tensor mixed = std::get<0>(at::_flash_attention_forward(
      project(query, 0), project(key, 1), project(value, 2), starts_of(query), starts_of(key),
      /*max_q=*/0, /*max_k=*/0, /*dropout_p=*/0.0, /*is_causal=*/false,
      /*return_debug_mask=*/false));
  const at::Tensor out = at::linear(mixed.reshape({-1, width}), proj_weight, proj_bias);
  return {wrap_buffer(out.reshape({-1}), get_nested_tensor_impl(query)->get_nested_sizes()),
          at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_native_multi_head_attention", TORCH_FN(multi_head_attention));
}

}  // namespace
}  // namespace torch_tpu::dispatch
