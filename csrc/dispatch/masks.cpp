#include "csrc/dispatch/masks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/nonzero.h>

#include "csrc/device/tensor.h"

namespace torch_tpu::dispatch {
namespace {

bool is_mask(const at::Tensor& tensor) {
  return tensor.scalar_type() == c10::ScalarType::Bool ||
         tensor.scalar_type() == c10::ScalarType::Byte;
}

c10::IValue& argument(const Op& op, c10::Stack* stack, const char* name) {
  const size_t first = stack->size() - op.args.size();
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (op.args[i].name == name) return (*stack)[first + i];
  }
  TORCH_INTERNAL_ASSERT(false, op.name, " has no argument ", name);
}

bool has_argument(const Op& op, const char* name) {
  for (const ArgPlan& plan : op.args) {
    if (plan.name == name) return true;
  }
  return false;
}

// Writing one number through one mask of the whole shape is a select and needs no positions.
bool is_masked_fill(const Op& op, c10::Stack* stack, const at::Tensor& self,
                    c10::ArrayRef<c10::IValue> indices) {
  return has_argument(op, "values") && argument(op, stack, "values").toTensor().numel() == 1 &&
         indices.size() == 1 && indices[0].isTensor() &&
         indices[0].toTensor().sizes() == self.sizes();
}

void check_mask_shape(const at::Tensor& mask, const at::Tensor& self, int64_t at) {
  for (int64_t d = 0; d < mask.dim(); ++d) {
    TORCH_CHECK_INDEX(at + d < self.dim() && mask.size(d) == self.size(at + d),
                      "The shape of the mask ", mask.sizes(), " at index ", d,
                      " does not match the shape of the indexed tensor ", self.sizes(),
                      " at index ", at + d);
  }
}

at::Tensor on_device(const at::Tensor& host, int device) {
  const at::Tensor dense = host.contiguous();
  return device::make_tensor(dense.sizes(), dense.strides(), dense.scalar_type(), device,
                             device::upload(dense, device));
}

}  // namespace

void expand_masks(const Op& op, c10::Stack* stack) {
  c10::IValue& list = argument(op, stack, "indices");
  const at::Tensor self = argument(op, stack, "self").toTensor();
  const auto items = list.toListRef();
  bool any = false;
  bool any_mask = false;
  for (const c10::IValue& item : items) {
    if (!item.isTensor() || !item.toTensor().defined()) continue;
    any |= item.toTensor().device().is_cpu();
    any_mask |= is_mask(item.toTensor());
  }
  if (self.device().is_cpu()) return;  // a mix of devices the key will refuse
  if (any_mask && !any && is_masked_fill(op, stack, self, items)) return;
  if (!any && !any_mask) return;
  const int device = self.device().index();
  c10::List<std::optional<at::Tensor>> out;
  int64_t position = 0;  // dimension of self the next index stands for
  for (const c10::IValue& item : items) {
    if (!item.isTensor() || !item.toTensor().defined()) {
      out.push_back(std::nullopt);
      ++position;
      continue;
    }
    const at::Tensor& tensor = item.toTensor();
    if (!is_mask(tensor)) {
      out.push_back(tensor.device().is_cpu() ? on_device(tensor, device) : tensor);
      ++position;
      continue;
    }
    check_mask_shape(tensor, self, position);
    const at::Tensor host = tensor.device().is_cpu() ? tensor : device::download(tensor);
    const at::Tensor hits = at::nonzero(host);
    for (int64_t d = 0; d < hits.size(1); ++d) out.push_back(on_device(hits.select(1, d), device));
    position += tensor.dim();
  }
  list = std::move(out);
}

}  // namespace torch_tpu::dispatch
