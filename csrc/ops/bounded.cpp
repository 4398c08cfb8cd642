// Which ops are right where dimensions vary: Entry::bounded. Elementwise families are by what they
// are. Each of the others was right in tests/conformance/bounded.py, on PyTorch's own samples, or
// in tests/python/test_bounded.py: in programs of a larger bound, with NaN in what does not count,
// against CPU.
#include <string_view>
#include <unordered_map>

#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// Nothing in them depends on where an element stands, so gaps do not matter.
constexpr std::string_view kAnywhere[] = {
    // reductions to values
    "sum",
    "sum.dim_IntList",
    "nansum",
    "mean",
    "mean.dim",
    "prod",
    "prod.dim_int",
    "amax",
    "amin",
    "aminmax",
    "max",
    "min",
    "any",
    "any.dim",
    "all",
    "all.dim",
    "var.correction",
    "std.correction",
    "var_mean.correction",
    "std_mean.correction",
    "linalg_vector_norm",
    "norm.ScalarOpt_dim",
    "logsumexp",
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    // normalization
    "native_layer_norm",
    "native_layer_norm_backward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "native_batch_norm",
    "native_batch_norm_backward",
    "_native_batch_norm_legit.no_stats",
    "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit_functional",
    "_batch_norm_with_update_functional",
    "batch_norm_backward",
    // losses
    "nll_loss_forward",
    "nll_loss_backward",
    "nll_loss2d_forward",
    "nll_loss2d_backward",
    "mse_loss",
    "mse_loss_backward",
    "smooth_l1_loss",
    "smooth_l1_loss_backward",
    "huber_loss",
    "huber_loss_backward",
    "binary_cross_entropy",
    "binary_cross_entropy_backward",
    "binary_cross_entropy_with_logits",
    "soft_margin_loss",
    "soft_margin_loss_backward",
    // products
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "mv",
    "addmv",
    "dot",
    "vdot",
    "addr",
    "linear",
    "linear_backward",
    "_trilinear",
    // rows of tables that do not vary
    "embedding",
    "embedding_dense_backward",
    // copies
    "copy",
    "copy_",
    "native_dropout_backward",
    "fill.Scalar",
    "zero",
};

// They count positions along a dimension.
constexpr std::string_view kByPosition[] = {
    "max.dim",
    "min.dim",
    "argmax",
    "argmin",
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "logcumsumexp",
    "sort",
    "sort.stable",
    "topk",
    "kthvalue",
    "cat",
    "stack",
    "flip",
    "constant_pad_nd",
    "tril",
    "triu",
    "index.Tensor",
    "index_select",
    "gather",
    "scatter.src",
    "scatter.value",
    "scatter_add",
    "scatter_reduce.two",
    "index_put",
    "_index_put_impl",
    "isin.Tensor_Tensor",
    "convolution_overrideable",
    "convolution_backward_overrideable",
    "native_group_norm",
    "native_group_norm_backward",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward",
    "linalg_cross",
    "native_dropout",
    "slice_backward",
    "select_backward",
    "repeat",
};

// Windows and resampling: batches of any size.
constexpr std::string_view kPerBatch[] = {
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices",
    "max_pool3d_with_indices_backward",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "avg_pool3d",
    "avg_pool3d_backward",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d",
    "_adaptive_avg_pool3d_backward",
    "grid_sampler_2d",
    "grid_sampler_2d_backward",
    "grid_sampler_3d",
    "grid_sampler_3d_backward",
    "pixel_shuffle",
    "pixel_unshuffle",
    "channel_shuffle",
    "reflection_pad1d",
    "reflection_pad2d",
    "reflection_pad3d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
};

}  // namespace

void mark_bounded(Entries& t) {
  std::unordered_map<std::string_view, Bounded> levels;
  for (std::string_view name : kAnywhere) levels[name] = Bounded::kAny;
  for (std::string_view name : kByPosition) levels[name] = Bounded::kPrefix;
  for (std::string_view name : kPerBatch) levels[name] = Bounded::kBatch;
  for (Entry& entry : t) {
    const auto found = levels.find(entry.name);
    if (found != levels.end()) {
      entry.bounded = found->second;
    } else if (entry.random) {
      entry.bounded = Bounded::kNo;  // what is drawn depends on the place in the buffer
    }
  }
}

}  // namespace torch_tpu::ops
