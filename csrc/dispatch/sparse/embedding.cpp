// The gradient of embedding_bag: dense by a lowering, sparse by PyTorch's own function, which says
// nothing of a device.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "csrc/dispatch/call/op.h"

namespace torch_tpu::dispatch {
namespace {

void embedding_bag_backward(const c10::OperatorHandle& op, c10::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto at = *op.schema().argumentIndexWithName("sparse");
  if (torch::jit::peek(*stack, static_cast<size_t>(at), arguments.size()).toBool()) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  } else {
    run_op(find_op("aten::_embedding_bag_backward"), stack);
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_embedding_bag_backward",
         torch::CppFunction::makeFromBoxedFunction<&embedding_bag_backward>());
}

}  // namespace
}  // namespace torch_tpu::dispatch
