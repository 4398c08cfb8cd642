// Quantized and mkldnn tensors do not exist on the device. What would make one is refused by name:
// nothing could compute with it, nor print it. Sparse ones are in csrc/dispatch/sparse.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace torch_tpu::dispatch {
namespace {

void refuse(const c10::OperatorHandle& op, c10::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The operator '", op.schema().operator_name(),
      "' needs a tensor with a layout that is not supported on device tpu: dense (strided) and "
      "sparse tensors are, no quantized or mkldnn ones. Keep that tensor on the CPU, or make it "
      "dense there first: y.to_dense().to('tpu').");
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("to_mkldnn", torch::CppFunction::makeFromBoxedFunction<&refuse>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

}  // namespace torch_tpu::dispatch
