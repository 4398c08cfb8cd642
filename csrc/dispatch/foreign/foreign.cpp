#include "csrc/dispatch/foreign/foreign.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include "csrc/base/hash.h"
#include "csrc/dispatch/call/op.h"
#include "csrc/dispatch/foreign/foreign_autograd.h"

namespace torch_tpu::dispatch {
namespace {

// Never freed, as programs hold it; only its kernels go when the op is defined anew.
struct Registered {
  Registered(const ForeignOp& from, const c10::OperatorHandle& handle)
      : entry(from.name, names_of(handle.schema()), from.traced, from.lowering),
        op(handle, &entry),
        define_gradient(from.gradient) {
    // Programs of an earlier definition are not those of this one.
    static std::atomic<uint64_t> serial{0};
    op.id = base::hash_combine(op.id, ++serial);
    // A traced number is a value of the program also where it is the default.
    for (ArgPlan& plan : op.args) plan.default_value.reset();
    const std::string& name = handle.operator_name().name;
    gradient.node_name = name.substr(name.find("::") + 2) + "Backward";
    for (const ArgPlan& plan : op.args) gradient.kinds.push_back(plan.kind);
    gradient.keeps_outputs = from.gradient_keeps_outputs;
    gradient.op = [this] { return gradient_op(); };
  }

  c10::OperatorHandle gradient_op() const;

  static std::vector<std::string> names_of(const c10::FunctionSchema& schema) {
    std::vector<std::string> names;
    for (const c10::Argument& argument : schema.arguments()) names.push_back(argument.name());
    return names;
  }

  const ops::ForeignEntry entry;
  Op op;
  Gradient gradient;
  const std::function<std::string()> define_gradient;
  mutable std::atomic<const Registered*> gradient_of{nullptr};
  mutable std::atomic<bool> gone{false};
};

struct Kernels {
  const Registered* from = nullptr;
  std::vector<std::unique_ptr<torch::Library>> libraries;
};

std::mutex mutex;
std::unordered_map<std::string, Kernels>& kernels() {
  static auto* all = new std::unordered_map<std::string, Kernels>();
  return *all;
}

c10::OperatorHandle Registered::gradient_op() const {
  const auto check = [this](const Registered& needed) {
    TORCH_CHECK(!needed.gone.load(std::memory_order_relaxed), op.name,
                " was defined anew after this forward pass, and the gradient of its old definition "
                "is gone. Run the forward pass again.");
  };
  check(*this);
  const Registered* found = gradient_of.load(std::memory_order_acquire);
  if (found == nullptr) {
    const std::string name = define_gradient();  // may ask Python: without the lock
    const std::lock_guard lock(mutex);
    const auto at = kernels().find(name);
    TORCH_CHECK(at != kernels().end(), op.name, " has a gradient ", name, ", which is not defined");
    found = at->second.from;
    gradient_of.store(found, std::memory_order_release);
  }
  check(*found);
  return found->op.handle;
}

class DeviceKernel final : public c10::OperatorKernel {
 public:
  explicit DeviceKernel(const Registered* from) : from_(from) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
    run_op(from_->op, stack);
  }

 private:
  const Registered* from_;
};

class AutogradKernel final : public c10::OperatorKernel {
 public:
  explicit AutogradKernel(const Registered* from) : from_(from) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::Stack* stack) {
    const std::vector<ArgPlan>& plans = from_->op.args;
    const size_t first = stack->size() - plans.size();
    bool differentiated = false;
    for (size_t i = 0; i < plans.size(); ++i) {
      if (!requires_grad(from_->op.name, (*stack)[first + i])) continue;
      if (!c10::GradMode::is_enabled()) continue;
      differentiated = true;
      TORCH_CHECK(from_->define_gradient != nullptr, from_->op.name, " has no gradient, but '",
                  plans[i].name,
                  "' requires one. Call it under torch.no_grad(), or on a "
                  "detached tensor.");
    }
    if (differentiated) {
      run_differentiated(from_->gradient, handle, keys, stack);
      return;
    }
    c10::SmallVector<at::Tensor, 2> written;
    if (from_->op.writes) {
      for (size_t i = 0; i < plans.size(); ++i) {
        if (plans[i].written) written.push_back((*stack)[first + i].toTensor());
      }
    }
    handle.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    for (const at::Tensor& tensor : written) {
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  }

 private:
  const Registered* from_;
};

template <typename Kernel>
std::unique_ptr<torch::Library> add_kernel(const c10::OperatorHandle& handle,
                                           c10::DispatchKey where, const Registered* from) {
  const c10::OperatorName& full = handle.operator_name();
  const std::string space = full.name.substr(0, full.name.find("::"));
  std::string name = full.name.substr(space.size() + 2);
  if (!full.overload_name.empty()) name += "." + full.overload_name;
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, space, where, __FILE__, __LINE__);
  library->impl(name.c_str(),
                torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(from)));
  return library;
}

}  // namespace

void register_foreign(ForeignOp op) {
  forget_foreign(op.name);
  const size_t dot = op.name.find('.');
  const c10::OperatorName name(op.name.substr(0, dot),
                               dot == std::string::npos ? "" : op.name.substr(dot + 1));
  const c10::OperatorHandle handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
  const auto* made = new Registered(op, handle);
  Kernels added;
  added.from = made;
  added.libraries.push_back(add_kernel<DeviceKernel>(handle, c10::DispatchKey::PrivateUse1, made));
  added.libraries.push_back(
      add_kernel<AutogradKernel>(handle, c10::DispatchKey::AutogradPrivateUse1, made));
  remember_op(made->op);
  const std::lock_guard lock(mutex);
  kernels().insert_or_assign(op.name, std::move(added));
}

void forget_foreign(const std::string& name) {
  Kernels gone;  // freed without the lock
  const std::lock_guard lock(mutex);
  if (auto at = kernels().find(name); at != kernels().end()) {
    at->second.from->gone = true;
    gone = std::move(at->second);
    kernels().erase(at);
  }
}

}  // namespace torch_tpu::dispatch
