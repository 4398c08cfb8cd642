// Which implementation scaled_dot_product_attention takes on this device: the fused one of the op
// table, or ATen's own composite ("math") for what that does not cover.
#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace torch_tpu::dispatch {
namespace {

// Plain batches [B, H, L, E] whose heads match, or divide those of the query under enable_gqa.
bool fits_fused(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                bool enable_gqa) {
  for (const at::Tensor* x : {&query, &key, &value}) {
    if (x->is_nested() || x->dim() != 4 || !at::isFloatingType(x->scalar_type())) return false;
    if (x->sym_size(0) != query.sym_size(0) || x->sym_size(1) == 0 ||
        query.sym_size(1) % x->sym_size(1) != 0) {
      return false;
    }
    if (!enable_gqa && x->sym_size(1) != query.sym_size(1)) return false;
  }
  return query.sym_size(3) == key.sym_size(3) && key.sym_size(2) == value.sym_size(2) &&
         query.sym_size(3) > 0;
}

int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& /*attn_mask*/, double /*dropout_p*/,
                         bool /*is_causal*/, std::optional<double> /*scale*/, bool enable_gqa) {
  const at::Context& context = at::globalContext();
  // Any fused kernel the user allows stands for ours.
  const bool fused = context.userEnabledOverrideableSDP() || context.userEnabledFlashSDP() ||
                     context.userEnabledMemEfficientSDP() || context.userEnabledCuDNNSDP();
  if (fused && fits_fused(query, key, value, enable_gqa)) {
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  }
  TORCH_CHECK(context.userEnabledMathSDP(),
              "No viable backend for scaled_dot_product_attention was found. ",
              "This is likely due to turning off both the math kernel and the fused kernels.");
  return static_cast<int64_t>(at::SDPBackend::math);
}

// nn.TransformerEncoder asks this before it packs a padded batch into a nested tensor, which this
// device computes part by part. "No" keeps the batch padded; only what stands in the padding then
// differs.
bool nested_from_mask_left_aligned(const at::Tensor& /*t*/, const at::Tensor& /*mask*/) {
  return false;
}

}  // namespace
}  // namespace torch_tpu::dispatch

namespace at::native {

// The composite asks this stub, not the op.
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_tpu::dispatch::fused_sdp_choice)

}  // namespace at::native

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &torch_tpu::dispatch::fused_sdp_choice);
  m.impl("_nested_tensor_from_mask_left_aligned",
         &torch_tpu::dispatch::nested_from_mask_left_aligned);
}

// The parts are computed one by one.
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_fused_sdp_choice", &torch_tpu::dispatch::fused_sdp_choice);
}
