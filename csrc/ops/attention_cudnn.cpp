// Attention by cuDNN's kernel, which XLA:CUDA offers as a custom call. It takes half types only,
// heads up to 128 wide, and numbers that are known when the program is built: its dropout has the
// probability and the seed in the program, so attention with dropout goes elsewhere.
#include <cmath>
#include <limits>
#include <sstream>

#include "csrc/ops/attention.h"
#include "csrc/ops/helpers.h"

namespace torch_tpu::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kMaxWidth = 128;  // 256 from Hopper on
constexpr int64_t kWidthStep = 8;
constexpr int64_t kMinLength = 64;

// How the dims of the operands are ordered. Models make [B, L, H, E] and show it as [B, H, L, E];
// the kernel reads either, so what was made that way is not copied.
enum class Order { kHeadsFirst, kLengthFirst };

Value in_order(const Value& x, Order order) {
  return order == Order::kHeadsFirst ? x : x.builder().transpose(x, {0, 2, 1, 3});
}

// The dims of one product: contracted and batch dims of both factors.
struct Product {
  std::string_view name;
  int lhs, rhs;
  int lhs_heads, rhs_heads;
};

// JSON as protobuf reads it: 64-bit integers are strings.
std::string product_text(const Product& p) {
  const auto dim = [](int d) { return "\"" + std::to_string(d) + "\""; };
  return "\"" + std::string(p.name) +
         "_dot_dimension_numbers\": {\"lhs_contracting_dimensions\": [" + dim(p.lhs) +
         "], \"rhs_contracting_dimensions\": [" + dim(p.rhs) +
         "], \"lhs_batch_dimensions\": [\"0\", " + dim(p.lhs_heads) +
         "], \"rhs_batch_dimensions\": [\"0\", " + dim(p.rhs_heads) + "]}";
}

// With scores [B, H, L, S]; l and h: which dims of an operand are length and heads.
std::vector<Product> products(Order order, bool backward) {
  const int h = order == Order::kHeadsFirst ? 1 : 2;
  const int l = 3 - h;
  if (!backward) return {{"bmm1", 3, 3, h, h}, {"bmm2", 3, l, 1, h}};
  return {{"bmm1_grad_gemm1", 2, l, 1, h},
          {"bmm1_grad_gemm2", 3, l, 1, h},
          {"bmm2_grad_gemm1", 2, l, 1, h},
          {"bmm2_grad_gemm2", 3, 3, h, h}};
}

double fixed_scale(const Attention& a) {
  return a.known_scale.value_or(1 / std::sqrt(double(a.query.dim(3))));
}

std::string config(const Attention& a, Order order, bool backward) {
  std::ostringstream out;
  out.precision(std::numeric_limits<double>::max_digits10);
  out << R"({"operation_queue_id": "0", "cudnn_fmha_backend_config": {)"
      << R"("algorithm": {"algo_id": "0", "math_type": "TENSOR_OP_MATH", )"
      << R"("tuning_knobs": {"17": "1", "24": "0"}, "is_cudnn_frontend": true, )"
      << R"("workspace_size": "0"}, "fmha_scale": )" << fixed_scale(a)
      << R"(, "intermediate_tensor_shape": {"element_type": ")"
      << (a.query.dtype() == DType::kBF16 ? "BF16" : "F16") << R"(", "dimensions": [)";
  std::string_view separator;
  for (const int64_t size : a.score_dims()) {
    out << separator << '"' << size << '"';
    separator = ", ";
  }
  out << R"(], "tuple_shapes": [], "layout": {"minor_to_major": ["3", "2", "1", "0"]}, )"
      << R"("is_dynamic_dimension": [false, false, false, false]}, "is_flash_attention": true, )"
      << R"("mask_type": ")" << (a.causal ? "CAUSAL" : "NO_MASK") << '"';
  for (const Product& p : products(order, backward)) out << ", " << product_text(p);
  out << R"(, "dropout_rate": 0.0, "seed": 0, "sliding_window_length": 0, "max_seg_per_batch": 1, )"
      << R"("is_paged_attention": false}})";
  return out.str();
}

Dims row_major(int64_t rank) {
  Dims layout;
  for (int64_t i = rank - 1; i >= 0; --i) layout.push_back(i);
  return layout;
}

// Results are always [B, H, L, E]; `ordered` of them lie in memory as the operands do.
Values call(std::string name, const Attention& a, Order order, bool backward,
            const Values& operands, std::vector<Type> results, size_t ordered) {
  stablehlo::CustomCall call;
  call.target = std::move(name);
  call.backend_config = config(a, order, backward);
  for (const Value& x : operands) call.operand_layouts.push_back(row_major(x.rank()));
  results.emplace_back(DType::kU8, Dims{0});  // the workspace; the compiler sets its size
  for (size_t i = 0; i < results.size(); ++i) {
    const bool swapped = i < ordered && order == Order::kLengthFirst;
    call.result_layouts.push_back(swapped ? Dims{3, 1, 2, 0} : row_major(results[i].rank()));
  }
  return a.query.builder().custom_call(call, operands, results);
}

Order order_of(const Attention& a) {
  return a.query_contiguous ? Order::kHeadsFirst : Order::kLengthFirst;
}

// The kernel subtracts biases from each other, so -inf becomes a number whose exponential is 0.
Value finite_bias(const Attention& a) {
  Builder& b = a.bias.builder();
  const Dims dims = {a.bias.dim(0), a.bias.dim(1), a.query.dim(2), a.key.dim(2)};
  const Value bias = b.broadcast_to(a.bias, dims);
  const double low = bias.dtype() == DType::kBF16 ? std::ldexp(-1.0, 41) : std::ldexp(-1.0, 15);
  return b.maximum(bias, b.like(bias, low));
}

// What a scale that only the run tells is to the one in the program.
Value scale_ratio(const Attention& a) {
  return a.known_scale ? Value() : a.scale * (1 / fixed_scale(a));
}

Value scaled_query(const Attention& a) {
  const Value ratio = scale_ratio(a);
  if (!ratio) return a.query;
  return cast(times_scalar(cast(a.query, a.wide()), ratio), a.query.dtype());
}

}  // namespace

bool cudnn_takes(const Attention& a, const Dropout& dropout, const AttentionGrad* grad) {
  const DType t = a.query.dtype();
  if (t != DType::kBF16 && t != DType::kF16) return false;
  if (a.key.dtype() != t || a.value.dtype() != t || dropout.state) return false;
  const int64_t width = a.query.dim(3);
  if (width != a.value.dim(3) || width > kMaxWidth || width % kWidthStep != 0) return false;
  if (a.key.dim(1) != a.value.dim(1)) return false;
  const int64_t rows = a.query.dim(2), columns = a.key.dim(2);
  if (rows < kMinLength || columns < kMinLength) return false;
  if (!a.bias) return true;
  if (a.bias.dtype() != t || a.causal || rows % 2 != 0 || columns % 2 != 0) return false;
  // The gradient of the bias: in this one shape in every version.
  const Dims& dims = a.bias.dims();
  const bool per_head = dims == Dims{1, a.query.dim(1), rows, columns};
  return grad == nullptr || !grad->wants[3] || per_head;
}

AttentionOut attention_by_cudnn(const Attention& a) {
  Builder& b = a.query.builder();
  const Order order = order_of(a);
  Values operands = {in_order(scaled_query(a), order), in_order(a.key, order),
                     in_order(a.value, order)};
  if (a.bias) operands.push_back(finite_bias(a));
  const Dims dims = a.out_dims();
  const Dims rows = {dims[0], dims[1], dims[2]};
  const Values results =
      call(a.bias ? "__cudnn$fmhaScaleBiasSoftmax" : "__cudnn$fmhaSoftmax", a, order, false,
           operands, {Type(a.query.dtype(), dims), Type(DType::kF32, rows)}, 1);
  AttentionOut r = {results[0], results[1]};
  if (a.bias) {
    const Value most = reduce_max(a.bias, {3});
    Value nothing = b.eq(most, b.like(most, -kInfinity));
    nothing = b.broadcast_to(nothing, rows);
    r.out = b.select(over_last(nothing, dims), zeros_like(r.out), r.out);
    r.logsumexp = b.select(nothing, b.like(r.logsumexp, -kInfinity), r.logsumexp);
  }
  return r;
}

Values attention_grad_by_cudnn(const Attention& a, const AttentionGrad& g) {
  Builder& b = a.query.builder();
  const Order order = order_of(a);
  Value lse = g.logsumexp, grad = cast(g.grad_out, a.query.dtype());
  if (a.bias) {
    const Value nothing = b.eq(lse, b.like(lse, -kInfinity));
    lse = b.select(nothing, zeros_like(lse), lse);
    grad = b.select(over_last(nothing, grad.dims()), zeros_like(grad), grad);
  }
  Values operands = {in_order(scaled_query(a), order), in_order(a.key, order),
                     in_order(a.value, order), lse, in_order(grad, order)};
  if (a.bias) operands.push_back(finite_bias(a));
  operands.push_back(in_order(cast(g.out, a.query.dtype()), order));
  std::vector<Type> types = {a.query.type(), a.key.type(), a.value.type()};
  const bool bias_grad = a.bias && g.wants[3];
  if (bias_grad) types.push_back(a.bias.type());
  Values grads =
      call(a.bias ? "__cudnn$fmhaScaleBiasSoftmaxBackward" : "__cudnn$fmhaSoftmaxBackward", a,
           order, true, operands, types, 3);
  grads.pop_back();
  grads.resize(4);
  if (const Value ratio = scale_ratio(a)) {
    grads[0] = times_scalar(cast(grads[0], a.wide()), ratio);
  }
  return grads;
}

}  // namespace torch_tpu::ops
