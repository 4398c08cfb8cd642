#include "csrc/dispatch/call/masks.h"

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

// A mask that is the only index. Written through, it is a select. Read through, it must come first,
// and the rest of a row must lie as it does in the result, which is then a prefix of the padded
// one.
bool program_counts(const Op& op, const at::Tensor& self, const at::Tensor& mask, int64_t lead) {
  if (has_argument(op, "values")) return true;
  return lead == 0 && !op.out_form && (mask.dim() == self.dim() || self.is_contiguous());
}

void check_mask_shape(const at::Tensor& mask, const at::Tensor& self, int64_t at) {
  for (int64_t d = 0; d < mask.dim(); ++d) {
    TORCH_CHECK_INDEX(at + d < self.dim() && mask.size(d) == self.size(at + d),
                      "The shape of the mask ", mask.sizes(), " at index ", d,
                      " does not match the shape of the indexed tensor ", self.sizes(),
                      " at index ", at + d);
  }
}

// As ATen does where it expands masks, and where it makes a masked_fill of a write.
void warn_of_bytes(const Op& op, c10::Stack* stack, bool alone, int count) {
  TORCH_CHECK(!alone || !has_argument(op, "values") ||
                  argument(op, stack, "values").toTensor().numel() != 1 ||
                  argument(op, stack, "accumulate").toBool(),
              "masked_fill_ only supports boolean masks, but got mask with dtype unsigned char");
  for (int i = 0; i < count; ++i) {
    TORCH_WARN(
        "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool "
        "instead.");
  }
}

at::Tensor on_device(const at::Tensor& host, int device) {
  const at::Tensor dense = host.contiguous();
  return device::make_tensor(dense.sizes(), dense.strides(), dense.scalar_type(), device,
                             device::upload(dense, device));
}

}  // namespace

bool holds_mask(const Op& op, const c10::IValue* args) {
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (op.args[i].name != "indices") continue;
    for (const c10::IValue& item : args[i].toListRef()) {
      if (item.isTensor() && item.toTensor().defined() && is_mask(item.toTensor())) return true;
    }
  }
  return false;
}

void expand_masks(const Op& op, c10::Stack* stack) {
  c10::IValue& list = argument(op, stack, "indices");
  const at::Tensor self = argument(op, stack, "self").toTensor();
  if (self.device().is_cpu()) return;  // a mix of devices the key will refuse
  const auto items = list.toListRef();
  const auto given = [](const c10::IValue& item) {
    return item.isTensor() && item.toTensor().defined();
  };
  int tensors = 0;
  int masks = 0;
  int bytes = 0;
  bool on_host = false;
  int64_t lead = 0;  // dimensions before the last index
  for (size_t i = 0; i < items.size(); ++i) {
    if (!given(items[i])) continue;
    const at::Tensor& tensor = items[i].toTensor();
    lead = static_cast<int64_t>(i);
    ++tensors;
    masks += is_mask(tensor) ? 1 : 0;
    bytes += tensor.scalar_type() == c10::ScalarType::Byte ? 1 : 0;
    on_host |= tensor.device().is_cpu();
  }
  if (masks == 0 && !on_host) return;
  if (masks == 1 && tensors == 1) {
    check_mask_shape(items[static_cast<size_t>(lead)].toTensor(), self, lead);
  }
  if (bytes > 0) warn_of_bytes(op, stack, tensors == 1, bytes);
  if (masks == 1 && tensors == 1 && !on_host) {
    const at::Tensor& mask = items[static_cast<size_t>(lead)].toTensor();
    if (program_counts(op, self, mask, lead)) return;
  }
  const int device = self.device().index();
  c10::List<std::optional<at::Tensor>> out;
  int64_t position = 0;  // dimension of self the next index stands for
  for (const c10::IValue& item : items) {
    if (!given(item)) {
      out.push_back(std::nullopt);
      ++position;
      continue;
    }
    const at::Tensor& tensor = item.toTensor();
    const bool host = tensor.device().is_cpu();
    if (!is_mask(tensor)) {
      out.push_back(host ? on_device(tensor, device) : tensor);
      ++position;
      continue;
    }
    check_mask_shape(tensor, self, position);
    const at::Tensor hits = at::nonzero(tensor);
    for (int64_t d = 0; d < hits.size(1); ++d) {
      const at::Tensor column = hits.select(1, d);
      out.push_back(host ? on_device(column, device) : column);
    }
    position += tensor.dim();
  }
  list = std::move(out);
}

}  // namespace torch_tpu::dispatch
