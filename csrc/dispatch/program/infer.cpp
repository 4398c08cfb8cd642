#include "csrc/dispatch/program/infer.h"

#include <atomic>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "csrc/dispatch/call/masks.h"
#include "csrc/dispatch/program/like_cpu.h"
#include "csrc/dispatch/program/plain_meta.h"

namespace torch_tpu::dispatch {
namespace {

at::Tensor meta_stand_in(const at::Tensor& tensor) {
  // Meta kernels written in Python read a wrapped number's value, and refuse other CPU tensors.
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           at::TensorOptions().device(at::kMeta).dtype(tensor.scalar_type()));
}

// Values that no op should object to: probabilities, well-conditioned matrices, valid indices. An
// error is then one of shapes and dtypes.
at::Tensor cpu_stand_in(const at::Tensor& tensor, bool probabilities) {
  if (tensor.device().is_cpu()) return tensor;
  const at::Tensor out = at::empty_strided(tensor.sizes(), tensor.strides(),
                                           at::TensorOptions().dtype(tensor.scalar_type()));
  const bool inexact = c10::isFloatingType(out.scalar_type()) || out.is_complex();
  if (!inexact || out.element_size() == 1 || at::has_internal_overlap(out) != at::MemOverlap::No) {
    return out.zero_();
  }
  out.fill_(0.5);
  if (out.dim() >= 2 && !probabilities) {
    out.diagonal(0, -2, -1).add_(static_cast<double>(out.size(-1)));
  }
  return out;
}

std::atomic<void (*)()> before_first_meta{nullptr};

// Nobody waits for the one who calls the hook: it takes the GIL, which the other may hold.
void prepare_meta() {
  if (before_first_meta.load(std::memory_order_relaxed) == nullptr) [[likely]]
    return;
  if (auto* hook = before_first_meta.exchange(nullptr)) hook();
}

}  // namespace

void set_before_first_meta(void (*hook)()) { before_first_meta.store(hook); }

c10::Stack stand_in_stack(const Frame& frame, const StandIn& stand_in, c10::Device device,
                          std::vector<at::Tensor>& tensors) {
  const Op& op = frame.op;
  const auto replace = [&](const c10::IValue& value) {
    at::Tensor out;
    if (value.isTensor() && value.toTensor().defined()) out = stand_in(value.toTensor());
    tensors.push_back(out);
    return out;
  };
  c10::Stack stack;
  stack.reserve(op.args.size());
  for (size_t i = 0; i < op.args.size(); ++i) {
    const c10::IValue& value = frame.args[i];
    switch (op.args[i].kind) {
      case ArgKind::kTensor: {
        at::Tensor tensor = replace(value);
        stack.push_back(value.isTensor() ? c10::IValue(std::move(tensor)) : c10::IValue());
        break;
      }
      case ArgKind::kTensorList: {
        if (value.isNone()) {
          stack.emplace_back();
        } else if (value.isTensorList()) {
          c10::List<at::Tensor> list;
          for (const c10::IValue& item : value.toListRef()) list.push_back(replace(item));
          stack.emplace_back(std::move(list));
        } else {
          c10::List<std::optional<at::Tensor>> list;
          for (const c10::IValue& item : value.toListRef()) {
            at::Tensor tensor = replace(item);
            list.push_back(item.isNone() ? std::optional<at::Tensor>() : tensor);
          }
          stack.emplace_back(std::move(list));
        }
        break;
      }
      case ArgKind::kGenerator:
        stack.emplace_back();
        break;
      default:
        stack.push_back(value.isDevice() ? c10::IValue(device) : value);
    }
  }
  return stack;
}

void raise_cpu_error(const Frame& frame) {
  constexpr size_t kMaxBytes = size_t{256} << 20;
  size_t bytes = 0;
  for (const TensorRef& ref : frame.tensors) {
    if (ref.impl != nullptr) bytes += static_cast<size_t>(ref.impl->numel()) * ref.impl->itemsize();
  }
  if (frame.op.name.find("_overrideable") != std::string::npos) return;  // CPU's is a placeholder
  const auto key = c10::DispatchKey::CPU;
  if (bytes > kMaxBytes || !frame.op.handle.hasComputedKernelForDispatchKey(key)) return;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> tensors;
  const bool random = frame.op.entry->random;
  c10::Stack stack = stand_in_stack(
      frame, [&](const at::Tensor& tensor) { return cpu_stand_in(tensor, random); }, c10::kCPU,
      tensors);
  frame.op.handle.redispatchBoxed(c10::DispatchKeySet(key), &stack);
}

Inferred infer(const Frame& frame) {
  Inferred out;
  const Op& op = frame.op;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::Stack stack = stand_in_stack(frame, meta_stand_in, c10::kMeta, out.tensors);
  if (op.entry->no_meta || (op.entry->expands_masks && holds_mask(op, frame.args))) return out;
  try {
    if (!run_plain_meta(op, stack)) {
      if (!op.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return out;
      prepare_meta();
      op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    }
  } catch (const c10::NotImplementedError&) {
    return out;  // a placeholder in place of a Meta kernel
  } catch (...) {
    raise_cpu_error(frame);
    throw;
  }
  out.known = true;
  for (size_t i = 0; i < op.returns.size(); ++i) {
    const c10::IValue& value = stack[i];
    out.numbers.push_back(op.return_is_tensor[i] ? c10::IValue() : value);
    if (op.return_is_list[i]) {
      const auto list = value.toListRef();
      out.list_sizes.push_back(static_cast<int>(list.size()));
      for (const c10::IValue& item : list) out.results.push_back(item.toTensor());
    } else {
      out.list_sizes.push_back(-1);
      out.results.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
  }
  if (!op.out_form) describe_like_cpu(frame, out.results);
  return out;
}

}  // namespace torch_tpu::dispatch
