#include "csrc/dispatch/call/kernel.h"

#include <array>
#include <memory>
#include <string>
#include <utility>

namespace torch_tpu::dispatch {
namespace {

class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const Op* op) : op_(op) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
    run_op(*op_, stack);
  }

 private:
  const Op* op_;
};

using ImplPtr = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// The arguments of one call, boxed where they stand. Its tensors are the caller's, without a
// reference of their own: a second one to a tensor of Python's costs torch a turn of the GIL, and
// giving it back another.
template <size_t count>
class Borrowed {
 public:
  template <typename... Args>
  explicit Borrowed(const Args&... args) : values_{box(args)...} {}
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() {
    for (c10::IValue& value : values_) {
      if (value.isTensor())
        static_cast<void>(std::move(value).toTensor().unsafeReleaseTensorImpl());
    }
  }

  const c10::IValue* data() const { return values_.data(); }

 private:
  static c10::IValue box(const at::Tensor& tensor) {
    return at::Tensor(ImplPtr::reclaim(tensor.unsafeGetTensorImpl()));
  }
  template <typename T>
  static c10::IValue box(const T& value) {
    return value;
  }

  std::array<c10::IValue, count> values_;
};

template <typename... Args>
c10::Stack run_boxed(const Op& op, const Args&... args) {
  c10::Stack stack;
  stack.reserve(sizeof...(args));
  (stack.emplace_back(args), ...);
  run_op(op, &stack);
  return stack;
}

template <typename... Args>
torch::CppFunction functional(const Op& op) {
  return torch::CppFunction([&op](const Args&... args) {
    at::Tensor result;
    const Borrowed<sizeof...(Args)> borrowed(args...);
    if (run_unboxed(op, borrowed.data(), &result)) return result;
    return std::move(run_boxed(op, args...)[0]).toTensor();
  });
}

template <typename... Args>
torch::CppFunction in_place(const Op& op) {
  return torch::CppFunction([&op](at::Tensor& self, const Args&... args) -> at::Tensor& {
    const Borrowed<1 + sizeof...(Args)> borrowed(self, args...);
    if (!run_unboxed(op, borrowed.data(), nullptr)) run_boxed(op, self, args...);
    return self;
  });
}

// A letter per argument: T for a tensor, N for a number; and whether the op writes the first or
// none. Empty for anything else.
std::string signature(const Op& op) {
  const c10::FunctionSchema& schema = op.handle.schema();
  if (op.entry->expands_masks || op.copies_out || op.returns.size() != 1) return "";
  if (schema.returns()[0].type()->kind() != c10::TypeKind::TensorType) return "";
  std::string letters = op.writes ? "in place " : "";
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (op.args[i].written != (op.writes && i == 0)) return "";
    const c10::TypeKind kind = schema.arguments()[i].real_type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::NumberType) return "";
    letters += kind == c10::TypeKind::TensorType ? "T" : "N";
  }
  if (op.writes && (op.returns[0] != 0 || schema.arguments()[0].is_out())) return "";
  return letters;
}

torch::CppFunction make_unboxed(const Op& op, const std::string& letters) {
  using T = at::Tensor;
  using N = at::Scalar;
  if (letters == "T") return functional<T>(op);
  if (letters == "TT") return functional<T, T>(op);
  if (letters == "TN") return functional<T, N>(op);
  if (letters == "TTT") return functional<T, T, T>(op);
  if (letters == "TTN") return functional<T, T, N>(op);
  if (letters == "TTTN") return functional<T, T, T, N>(op);
  if (letters == "TTTNN") return functional<T, T, T, N, N>(op);
  if (letters == "in place T") return in_place<>(op);
  if (letters == "in place TT") return in_place<T>(op);
  if (letters == "in place TN") return in_place<N>(op);
  if (letters == "in place TTN") return in_place<T, N>(op);
  if (letters == "in place TTT") return in_place<T, T>(op);
  if (letters == "in place TTTN") return in_place<T, T, N>(op);
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(&op));
}

}  // namespace

torch::CppFunction make_kernel(const Op& op) { return make_unboxed(op, signature(op)); }

}  // namespace torch_tpu::dispatch
