// What the forms of scaled dot product attention share: attention.cpp (all scores at once, and the
// choice), attention_blocks.cpp (a loop over blocks of scores), attention_cudnn.cpp (NVIDIA's
// kernel). All of them leave the same logsumexp and draw the same dropout mask from the same state,
// so the backward may take another form than the forward did.
#pragma once

#include <optional>

#include "csrc/ops/call.h"
#include "csrc/ops/target.h"

namespace torch_tpu::ops {

struct Attention {
  Value query, key, value;            // [B, H, L, E], [B, Hk, S, E], [B, Hv, S, Ev]
  Value bias;                         // [1 or B, 1 or H, 1 or L, 1 or S] or undefined
  Value scale;                        // 0-d
  std::optional<double> known_scale;  // its value where that is part of the key
  bool causal = false;                // both sequences begin together, whatever their lengths
  bool query_contiguous = true;

  Dims score_dims() const { return {query.dim(0), query.dim(1), query.dim(2), key.dim(2)}; }
  Dims out_dims() const { return {query.dim(0), query.dim(1), query.dim(2), value.dim(3)}; }
  // The type of scores and sums.
  DType wide() const { return scale.dtype(); }
};

// The mask that zeros attention weights; without a state there is none.
struct Dropout {
  Value state;  // ui64[2]
  Value p;      // 0-d f32
};

struct AttentionOut {
  Value out;        // [B, H, L, Ev]
  Value logsumexp;  // [B, H, L], -inf where there is nothing to attend to
};

// What the backward gets from the forward, and which gradients it owes.
struct AttentionGrad {
  Value grad_out, out;      // [B, H, L, Ev]
  Value logsumexp;          // [B, H, L], f32
  std::vector<bool> wants;  // of query, key, value and bias
};

// The form for this on the current target; `grad` is null for the forward.
AttentionForm attention_form(const Attention& a, const Dropout& dropout, const AttentionGrad* grad);
// In that form.
AttentionOut attention(const Attention& a, const Dropout& dropout);

// Gradients come as {query, key, value, bias}; one that is not wanted may be undefined. That of the
// bias has the bias's dims.
AttentionOut attention_by_blocks(const Attention& a, const Dropout& dropout);
Values attention_grad_by_blocks(const Attention& a, const Dropout& dropout, const AttentionGrad& g);

// Whether the kernel does this.
bool cudnn_takes(const Attention& a, const Dropout& dropout, const AttentionGrad* grad);
AttentionOut attention_by_cudnn(const Attention& a);
Values attention_grad_by_cudnn(const Attention& a, const AttentionGrad& g);

// --- pieces ---
// Over one of the last two dimensions of each factor; a has a multiple of the heads of b, and the
// result has the heads of b and the rows of a's neighbouring heads one after the other.
Value head_product(const Value& a, const Value& b, int64_t a_dim, int64_t b_dim);
// a^T b per head of `heads`: [B, heads, columns of a, columns of b].
Value transposed_head_product(const Value& a, const Value& b, int64_t heads);
Value over_last(const Value& row, const Dims& dims);      // [B, H, L] for each column
Value times_scalar(const Value& x, const Value& scalar);  // 0-d
// Zeros what is dropped and scales up the rest. `x` is the part of the weights of dims `all` that
// begins at `starts` (undefined: 0).
Value dropped(const Value& x, const Dropout& dropout, const Dims& all, const Values& starts = {});

}  // namespace torch_tpu::ops
