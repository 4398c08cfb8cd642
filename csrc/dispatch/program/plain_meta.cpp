#include "csrc/dispatch/program/plain_meta.h"

#include <unordered_map>

#include <ATen/ExpandUtils.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/ops/_log_softmax_meta_dispatch.h>
#include <ATen/ops/_softmax_meta_dispatch.h>
#include <ATen/ops/add_meta_dispatch.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/argmax_meta_dispatch.h>
#include <ATen/ops/baddbmm_meta_dispatch.h>
#include <ATen/ops/bmm_meta_dispatch.h>
#include <ATen/ops/cat_meta_dispatch.h>
#include <ATen/ops/clamp_meta_dispatch.h>
#include <ATen/ops/cos_meta_dispatch.h>
#include <ATen/ops/cumsum_meta_dispatch.h>
#include <ATen/ops/div_meta_dispatch.h>
#include <ATen/ops/elu_backward_meta_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq_meta_dispatch.h>
#include <ATen/ops/exp_meta_dispatch.h>
#include <ATen/ops/ge_meta_dispatch.h>
#include <ATen/ops/gelu_meta_dispatch.h>
#include <ATen/ops/gt_meta_dispatch.h>
#include <ATen/ops/le_meta_dispatch.h>
#include <ATen/ops/leaky_relu_backward_meta_dispatch.h>
#include <ATen/ops/log_meta_dispatch.h>
#include <ATen/ops/lt_meta_dispatch.h>
#include <ATen/ops/maximum_meta_dispatch.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/minimum_meta_dispatch.h>
#include <ATen/ops/mm_meta_dispatch.h>
#include <ATen/ops/mse_loss_meta_dispatch.h>
#include <ATen/ops/mul_meta_dispatch.h>
#include <ATen/ops/ne_meta_dispatch.h>
#include <ATen/ops/neg_meta_dispatch.h>
#include <ATen/ops/pow_meta_dispatch.h>
#include <ATen/ops/rsqrt_meta_dispatch.h>
#include <ATen/ops/sigmoid_meta_dispatch.h>
#include <ATen/ops/silu_meta_dispatch.h>
#include <ATen/ops/sin_meta_dispatch.h>
#include <ATen/ops/sqrt_meta_dispatch.h>
#include <ATen/ops/sub_meta_dispatch.h>
#include <ATen/ops/sum_meta_dispatch.h>
#include <ATen/ops/tanh_meta_dispatch.h>
#include <ATen/ops/threshold_backward_meta_dispatch.h>
#include <ATen/ops/tril_meta_dispatch.h>
#include <ATen/ops/triu_meta_dispatch.h>

namespace torch_tpu::dispatch {
namespace {

using at::Tensor;

// PyTorch leaves convolutions to the device. As on CPU, channels come last in the results if they
// do in an operand.
at::MemoryFormat format_of_convolution(const Tensor& input, const Tensor& weight) {
  const at::MemoryFormat format = input.suggest_memory_format();
  return format == at::MemoryFormat::Contiguous ? weight.suggest_memory_format() : format;
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                   bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "expected scalar type ",
              input.scalar_type(), " but found ", weight.scalar_type());
  TORCH_CHECK(!bias || !bias->defined() || bias->scalar_type() == input.scalar_type(),
              "Input type (", input.dtype().name(), ") and bias type (", bias->dtype().name(),
              ") should be the same");
  c10::DimVector sizes = {input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (size_t i = 0; i < stride.size(); ++i) {
    const auto d = static_cast<int64_t>(i) + 2;
    const int64_t reach = dilation[i] * (weight.size(d) - 1);
    sizes.push_back(transposed ? (input.size(d) - 1) * stride[i] - 2 * padding[i] + reach +
                                     output_padding[i] + 1
                               : (input.size(d) + 2 * padding[i] - reach - 1) / stride[i] + 1);
  }
  return at::empty(sizes, input.options().memory_format(format_of_convolution(input, weight)));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad_output,
                                                        const Tensor& input, const Tensor& weight,
                                                        at::IntArrayRef, at::IntArrayRef,
                                                        at::IntArrayRef, bool transposed,
                                                        at::IntArrayRef, int64_t groups,
                                                        std::array<bool, 3> mask) {
  const at::MemoryFormat format = format_of_convolution(input, weight);
  const auto like = [&](bool asked, const Tensor& operand) {
    return asked ? at::empty(operand.sizes(), operand.options().memory_format(format)) : Tensor();
  };
  const int64_t features = transposed ? weight.size(1) * groups : weight.size(0);
  return {like(mask[0], input), like(mask[1], weight),
          mask[2] ? at::empty({features}, grad_output.options()) : Tensor()};
}

// PyTorch's own, in C++.
const c10::KernelFunction* find_kernel(const std::string& name) {
  using Kernels = std::unordered_map<std::string, c10::KernelFunction>;
  static const auto* all = [] {
    auto* out = new Kernels();
    const auto add = [&](const std::string& op, auto* kernel) {
      out->emplace("aten::" + op, c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel));
    };
    using Unary = Tensor(const Tensor&);
    using Binary = Tensor(const Tensor&, const Tensor&);
    using Scaled = Tensor(const Tensor&, const Tensor&, const at::Scalar&);
    add("add.Tensor", static_cast<Scaled*>(&at::meta::add));
    add("sub.Tensor", static_cast<Scaled*>(&at::meta::sub));
    add("mul.Tensor", static_cast<Binary*>(&at::meta::mul));
    add("div.Tensor", static_cast<Binary*>(&at::meta::div));
    add("pow.Tensor_Scalar",
        static_cast<Tensor (*)(const Tensor&, const at::Scalar&)>(&at::meta::pow));
    add("mm", static_cast<Binary*>(&at::meta::mm));
    add("bmm", static_cast<Binary*>(&at::meta::bmm));
    add("addmm", &at::meta::addmm);
    add("baddbmm", &at::meta::baddbmm);
    add("clamp", static_cast<Tensor (*)(const Tensor&, const std::optional<at::Scalar>&,
                                        const std::optional<at::Scalar>&)>(&at::meta::clamp));
    add("cos", static_cast<Unary*>(&at::meta::cos));
    add("exp", static_cast<Unary*>(&at::meta::exp));
    add("neg", static_cast<Unary*>(&at::meta::neg));
    add("rsqrt", static_cast<Unary*>(&at::meta::rsqrt));
    add("sigmoid", static_cast<Unary*>(&at::meta::sigmoid));
    add("silu", static_cast<Unary*>(&at::meta::silu));
    add("sin", static_cast<Unary*>(&at::meta::sin));
    add("sqrt", static_cast<Unary*>(&at::meta::sqrt));
    add("tanh", static_cast<Unary*>(&at::meta::tanh));
    add("gelu", &at::meta::gelu);
    add("_softmax", &at::meta::_softmax);
    add("_log_softmax", &at::meta::_log_softmax);
    add("argmax", &at::meta::argmax);
    using Compared = Tensor(const Tensor&, const at::Scalar&);
    const auto add_comparison = [&](const std::string& op, Binary* tensors, Compared* scalar) {
      add(op + ".Tensor", tensors);
      add(op + ".Scalar", scalar);
    };
    add_comparison("eq", &at::meta::eq, &at::meta::eq);
    add_comparison("ne", &at::meta::ne, &at::meta::ne);
    add_comparison("lt", &at::meta::lt, &at::meta::lt);
    add_comparison("le", &at::meta::le, &at::meta::le);
    add_comparison("gt", &at::meta::gt, &at::meta::gt);
    add_comparison("ge", &at::meta::ge, &at::meta::ge);
    add("maximum", static_cast<Binary*>(&at::meta::maximum));
    add("minimum", static_cast<Binary*>(&at::meta::minimum));
    add("log", static_cast<Unary*>(&at::meta::log));
    add("cat", &at::meta::cat);
    add("cumsum", static_cast<Tensor (*)(const Tensor&, int64_t, std::optional<at::ScalarType>)>(
                      &at::meta::cumsum));
    add("tril", static_cast<Tensor (*)(const Tensor&, int64_t)>(&at::meta::tril));
    add("triu", static_cast<Tensor (*)(const Tensor&, int64_t)>(&at::meta::triu));
    add("mse_loss", &at::meta::mse_loss);
    add("threshold_backward", &at::meta::threshold_backward);
    // These refuse a slope below 0 after an in-place forward, which those in Python forget.
    add("leaky_relu_backward", &at::meta::leaky_relu_backward);
    add("elu_backward", &at::meta::elu_backward);
    add("sum.dim_IntList", &at::meta::sum);
    add("mean.dim", &at::meta::mean);
    add("convolution_overrideable", &convolution);
    add("convolution_backward_overrideable", &convolution_backward);
    return out;
  }();
  const auto at = all->find(name);
  return at == all->end() ? nullptr : &at->second;
}

// Those that have none in C++, for arguments that are surely right.

bool is_float(const Tensor& tensor) {
  return tensor.is_meta() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
}

// Any shape of `steps` elements will do.
bool spaced(c10::Stack& stack) {
  const Tensor out = stack.back().toTensor();
  if (out.numel() != stack[2].toInt()) return false;
  stack = {out};
  return true;
}

// No elements are drawn in any dtype, as on CPU; of a negative deviation PyTorch's kernel speaks.
bool normal(c10::Stack& stack) {
  const Tensor self = stack[0].toTensor();
  if (self.numel() != 0 || stack[2].toDouble() < 0) return false;
  stack = {self};
  return true;
}

bool embedding(c10::Stack& stack) {
  const Tensor& weight = stack[0].toTensor();
  const Tensor& indices = stack[1].toTensor();
  const bool is_index = indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt;
  if (!weight.is_meta() || !indices.is_meta() || weight.dim() != 2 || !is_index) return false;
  c10::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  stack = {at::empty(sizes, weight.options())};
  return true;
}

bool linear(c10::Stack& stack) {
  const Tensor& input = stack[0].toTensor();
  const Tensor& weight = stack[1].toTensor();
  if (!is_float(input) || !is_float(weight) || input.dim() == 0 || weight.dim() != 2) return false;
  if (input.size(-1) != weight.size(1)) return false;
  if (stack[2].isTensor() && stack[2].toTensor().defined()) {
    const Tensor& bias = stack[2].toTensor();
    if (!is_float(bias) || bias.dim() != 1 || bias.size(0) != weight.size(0)) return false;
  }
  c10::DimVector sizes(input.sizes());
  sizes.back() = weight.size(0);
  stack = {at::empty(sizes, input.options())};
  return true;
}

bool layer_norm(c10::Stack& stack) {
  const Tensor& input = stack[0].toTensor();
  const std::vector<int64_t> shape = stack[1].toIntVector();
  if (!is_float(input) || shape.empty()) return false;
  const auto inner = static_cast<int64_t>(shape.size());
  const int64_t outer = input.dim() - inner;
  if (outer < 0 || input.sizes().slice(static_cast<size_t>(outer)) != at::IntArrayRef(shape)) {
    return false;
  }
  for (size_t i : {2, 3}) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    if (!is_float(stack[i].toTensor()) || stack[i].toTensor().sizes() != at::IntArrayRef(shape)) {
      return false;
    }
  }
  c10::DimVector sizes(input.sizes().slice(0, static_cast<size_t>(outer)));
  sizes.resize(static_cast<size_t>(input.dim()), 1);
  const at::TensorOptions options = input.options();
  stack = {at::empty(input.sizes(), options), at::empty(sizes, options), at::empty(sizes, options)};
  return true;
}

bool masked_fill(c10::Stack& stack) {
  const Tensor& self = stack[0].toTensor();
  const Tensor& mask = stack[1].toTensor();
  if (!is_float(self) || !mask.is_meta() || mask.scalar_type() != at::kBool) return false;
  if (stack[2].isComplexDouble() || !at::is_expandable_to(mask.sizes(), self.sizes())) return false;
  stack = {at::empty(self.sizes(), self.options())};
  return true;
}

// relu and abs
bool like_self(c10::Stack& stack) {
  const Tensor& self = stack[0].toTensor();
  if (!is_float(self)) return false;
  stack = {at::empty(self.sizes(), self.options())};
  return true;
}

bool where(c10::Stack& stack) {
  const Tensor& condition = stack[0].toTensor();
  const Tensor& self = stack[1].toTensor();
  const Tensor& other = stack[2].toTensor();
  if (!condition.is_meta() || condition.scalar_type() != at::kBool) return false;
  // Broadcast operands have other strides, or an error.
  if (!condition.is_contiguous() || !is_float(self) || !is_float(other)) return false;
  if (self.sizes() != condition.sizes() || other.sizes() != condition.sizes()) return false;
  stack = {at::empty(self.sizes(), self.options())};
  return true;
}

}  // namespace

bool run_plain_meta(const Op& op, c10::Stack& stack) {
  if (const c10::KernelFunction* kernel = find_kernel(op.name)) {
    kernel->callBoxed(op.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    return true;
  }
  if (op.name == "aten::embedding") return embedding(stack);
  if (op.name == "aten::normal_") return normal(stack);
  if (op.name == "aten::linear") return linear(stack);
  if (op.name == "aten::native_layer_norm") return layer_norm(stack);
  if (op.name == "aten::masked_fill.Scalar") return masked_fill(stack);
  if (op.name == "aten::relu" || op.name == "aten::abs") return like_self(stack);
  if (op.name == "aten::where.self") return where(stack);
  if (op.name == "aten::linspace.out" || op.name == "aten::logspace.out") return spaced(stack);
  return false;
}

}  // namespace torch_tpu::dispatch
