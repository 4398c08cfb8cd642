// Quantized and mkldnn tensors do not exist on the device. What would make one is refused by name:
// nothing could compute with it, nor print it. Sparse ones are in csrc/dispatch/sparse, nested ones
// in nested.cpp.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace torch_tpu::dispatch {
namespace {

void refuse(const c10::OperatorHandle& op, c10::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The operator '", op.schema().operator_name(),
      "' needs a tensor with a layout that is not supported on device tpu: dense (strided), sparse "
      "and nested tensors are, no mkldnn ones. Keep that tensor on the CPU.");
}

void refuse_quantized(const c10::OperatorHandle& op, c10::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The operator '", op.schema().operator_name(),
      "' makes a quantized tensor (quint8, qint8, qint32), and device tpu has none. Keep numbers "
      "and scales apart: int8 tensors with torch._int_mm, or a model quantized by PT2E "
      "(torchao.quantization.pt2e), whose torch.ops.quantized_decomposed ops work on plain "
      "tensors.");
}

void refuse_quantizing(torch::Library& m) {
  for (const char* name :
       {"quantize_per_tensor", "quantize_per_tensor.tensor_qparams", "quantize_per_tensor.tensors",
        "quantize_per_tensor_dynamic", "quantize_per_channel", "_empty_affine_quantized",
        "_empty_per_channel_affine_quantized", "empty_quantized",
        "_make_per_tensor_quantized_tensor", "_make_per_channel_quantized_tensor"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("to_mkldnn", torch::CppFunction::makeFromBoxedFunction<&refuse>());
  refuse_quantizing(m);
}
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) { refuse_quantizing(m); }
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}

}  // namespace torch_tpu::dispatch
