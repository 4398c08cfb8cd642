// Tensors on the device are strided. What would make one of another layout, or takes one that got
// there in some other way, is refused by name: nothing could compute with it, nor print it.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace torch_tpu::dispatch {
namespace {

void refuse(const c10::OperatorHandle& op, c10::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The operator '", op.schema().operator_name(),
      "' needs a tensor with a layout that is not supported on device tpu: only dense (strided) "
      "tensors are, no sparse ones. Keep that tensor on the CPU, or make it "
      "dense there first: x.cpu().to_sparse_csr(), y.to_dense().to('tpu').");
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

// What would make such a tensor.
void refuse_all(torch::Library& m) {
  for (const char* name :
       {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr",
        "_to_sparse_bsc", "_sparse_compressed_tensor_unsafe", "_sparse_csr_tensor_unsafe",
        "_sparse_csc_tensor_unsafe", "_sparse_bsr_tensor_unsafe", "_sparse_bsc_tensor_unsafe",
        "_sparse_compressed_tensor_with_dims", "sparse_compressed_tensor.comp_plain_value_size",
        "sparse_compressed_tensor.comp_plain_value", "to_mkldnn"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  refuse_all(m);
  refuse_quantizing(m);
}
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) { refuse_quantizing(m); }
// Where the layout is among the arguments of the call, it decides the key.
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) { refuse_all(m); }

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}

}  // namespace torch_tpu::dispatch
