#include "csrc/dispatch/infer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torch_tpu::dispatch {
namespace {

at::Tensor stand_in(const at::Tensor& tensor) {
  // CPU scalars stay: Meta kernels written in Python read a wrapped number's value.
  if (tensor.device().is_cpu()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           at::TensorOptions().device(at::kMeta).dtype(tensor.scalar_type()));
}

}  // namespace

Inferred infer(const Frame& frame) {
  Inferred out;
  const Op& op = frame.op;
  at::AutoDispatchBelowADInplaceOrView below_autograd;

  c10::Stack stack;
  stack.reserve(op.args.size());
  for (size_t i = 0; i < op.args.size(); ++i) {
    const c10::IValue& value = frame.args[i];
    switch (op.args[i].kind) {
      case ArgKind::kTensor: {
        at::Tensor meta;
        if (value.isTensor() && value.toTensor().defined()) meta = stand_in(value.toTensor());
        out.tensors.push_back(meta);
        stack.push_back(value.isTensor() ? c10::IValue(meta) : c10::IValue());
        break;
      }
      case ArgKind::kTensorList: {
        if (value.isNone()) {
          stack.emplace_back();
          break;
        }
        const bool optional = !value.isTensorList();
        c10::List<at::Tensor> plain;
        c10::List<std::optional<at::Tensor>> maybe;
        for (const c10::IValue& item : value.toListRef()) {
          at::Tensor meta;
          if (item.isTensor() && item.toTensor().defined()) meta = stand_in(item.toTensor());
          out.tensors.push_back(meta);
          if (optional) {
            maybe.push_back(item.isNone() ? std::optional<at::Tensor>() : meta);
          } else {
            plain.push_back(meta);
          }
        }
        stack.push_back(optional ? c10::IValue(maybe) : c10::IValue(plain));
        break;
      }
      case ArgKind::kGenerator: stack.emplace_back(); break;
      default:
        if (value.isDevice()) {
          stack.emplace_back(c10::Device(c10::kMeta));
        } else {
          stack.push_back(value);
        }
    }
  }
  if (op.entry->no_meta || !op.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
    return out;
  }
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
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
  return out;
}

}  // namespace torch_tpu::dispatch
