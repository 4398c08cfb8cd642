// What jagged tensors (torch/nested in Python, values and offsets) need beside the op table's
// entries of csrc/ops/jagged.cpp and csrc/ops/attention_jagged.cpp.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "csrc/dispatch/call/op.h"

namespace torch_tpu::dispatch {
namespace {

// The number of rows decides the result's size: read where it is not given.
at::Tensor padded_to_jagged(const at::Tensor& dense, at::TensorList offsets,
                            std::optional<c10::SymInt> total) {
  TORCH_CHECK(offsets.size() == 1,
              "_padded_dense_to_jagged_forward(): only a single jagged dim is supported for now");
  TORCH_CHECK(offsets[0].dim() == 1,
              "_padded_dense_to_jagged_forward(): expected 1D offsets, but got offsets.dim() == ",
              offsets[0].dim());
  TORCH_CHECK(dense.dim() >= 2,
              "_padded_dense_to_jagged_forward(): expected padded dim >= 2, but padded.dim() == ",
              dense.dim());
  const int64_t rows = total ? total->expect_int() : offsets[0].select(0, -1).item<int64_t>();
  c10::Stack stack{dense, offsets, rows};
  static const Op* const op = &find_op("aten::_padded_dense_to_jagged_forward");
  run_op(*op, &stack);
  return stack[0].toTensor();
}

// The longest lengths change nothing here: as part of the key they would make programs.
void flash_attention(const c10::OperatorHandle& op, c10::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t first = stack->size() - schema.arguments().size();
  for (const char* name : {"max_q", "max_k"}) {
    (*stack)[first + static_cast<size_t>(*schema.argumentIndexWithName(name))] = int64_t{0};
  }
  run_op(find_op(full_name(op)), stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_padded_dense_to_jagged_forward", TORCH_FN(padded_to_jagged));
  m.impl("_flash_attention_forward", torch::CppFunction::makeFromBoxedFunction<&flash_attention>());
  m.impl("_flash_attention_backward",
         torch::CppFunction::makeFromBoxedFunction<&flash_attention>());
}

}  // namespace
}  // namespace torch_tpu::dispatch
