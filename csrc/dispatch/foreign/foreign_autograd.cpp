#include "csrc/dispatch/foreign/foreign_autograd.h"

#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace torch_tpu::dispatch {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using NodePtr = decltype(std::declval<Node&>().getptr());

template <typename Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& item : value.toListRef()) each_tensor(item, visit);
  }
}

class ForeignNode final : public Node {
 public:
  explicit ForeignNode(const Gradient& gradient) : gradient_(&gradient) {}

  std::string name() const override { return gradient_->node_name; }

  void keep_arguments(const c10::IValue* arguments) {
    const auto keep = [this](const at::Tensor& tensor) {
      add_next_edge(torch::autograd::impl::gradient_edge(tensor));
      inputs_.emplace_back(tensor, /*is_output=*/false);
    };
    arguments_.reserve(gradient_->kinds.size());
    inputs_.reserve(gradient_->kinds.size());
    for (size_t i = 0; i < gradient_->kinds.size(); ++i) {
      const c10::IValue& value = arguments[i];
      each_tensor(value, keep);
      arguments_.push_back(without_tensors(gradient_->kinds[i], value));
    }
  }

  void keep_output(const at::Tensor& tensor) { outputs_.emplace_back(tensor, /*is_output=*/true); }

  variable_list apply(variable_list&& gradients) override {
    variable_list found(num_outputs());
    c10::List<int64_t> wanted;
    for (size_t i = 0; i < found.size(); ++i) {
      if (task_should_compute_output(i)) wanted.push_back(static_cast<int64_t>(i));
    }
    c10::List<std::optional<at::Tensor>> given;
    bool any = false;
    for (at::Tensor& gradient : gradients) {
      any |= gradient.defined();
      given.push_back(gradient.defined() ? std::optional(std::move(gradient)) : std::nullopt);
    }
    if (!any || wanted.empty()) return found;
    c10::Stack stack = unpacked();
    stack.emplace_back(std::move(given));
    stack.emplace_back(wanted);
    gradient_->op().callBoxed(&stack);
    const c10::List<at::Tensor> results = std::move(stack.at(0)).toTensorList();
    TORCH_CHECK(results.size() == wanted.size(), name(), " gave ", results.size(),
                " gradients where ", wanted.size(), " are wanted");
    for (size_t i = 0; i < wanted.size(); ++i) {
      found[static_cast<size_t>(wanted.get(i))] = results.get(i);
    }
    return found;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (SavedVariable& saved : inputs_) saved.reset_data();
    for (SavedVariable& saved : outputs_) saved.reset_data();
    released_ = true;
  }

 private:
  // Of a list: which of its items are tensors.
  static c10::IValue without_tensors(ArgKind kind, const c10::IValue& value) {
    if (kind == ArgKind::kTensor) return value.isTensor() && value.toTensor().defined();
    if (kind != ArgKind::kTensorList) return value;
    c10::List<bool> there;
    for (const c10::IValue& item : value.toListRef()) {
      there.push_back(item.isTensor() && item.toTensor().defined());
    }
    return there;
  }

  // The arguments of the call and, where they are kept, its outputs.
  c10::Stack unpacked() {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
    size_t next = 0;
    c10::Stack stack;
    stack.reserve(arguments_.size() + 3);
    for (size_t i = 0; i < arguments_.size(); ++i) {
      switch (gradient_->kinds[i]) {
        case ArgKind::kTensor:
          stack.emplace_back(arguments_[i].toBool() ? c10::IValue(inputs_[next++].unpack())
                                                    : c10::IValue());
          break;
        case ArgKind::kTensorList: {
          // Also for Tensor[]: our kernels take either.
          c10::List<std::optional<at::Tensor>> list;
          for (const bool there : arguments_[i].toBoolList()) {
            list.push_back(there ? std::optional(inputs_[next++].unpack()) : std::nullopt);
          }
          stack.emplace_back(std::move(list));
          break;
        }
        default:
          stack.push_back(arguments_[i]);
      }
    }
    c10::List<at::Tensor> outputs;
    for (const SavedVariable& saved : outputs_) outputs.push_back(saved.unpack(getptr()));
    stack.emplace_back(std::move(outputs));
    return stack;
  }

  const Gradient* gradient_;
  c10::Stack arguments_;  // true or false in place of tensors
  std::vector<SavedVariable> inputs_;
  std::vector<SavedVariable> outputs_;
  bool released_ = false;
};

// torch counts references to nodes by std::shared_ptr up to 2.12, then in the node.
template <typename Pointer>
std::pair<Pointer, ForeignNode*> make_node(const Gradient& gradient) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    auto* made = new ForeignNode(gradient);
    return {Pointer(made, [](auto* node) { deleteNode(node); }), made};  // torch's
  } else {
    auto made = c10::make_intrusive<ForeignNode>(gradient);
    ForeignNode* plain = made.get();
    return {std::move(made), plain};
  }
}

}  // namespace

bool requires_grad(const std::string& op, const c10::IValue& value) {
  bool required = false;
  each_tensor(value, [&](const at::Tensor& tensor) {
    required |= tensor.requires_grad();
    TORCH_CHECK_NOT_IMPLEMENTED(!tensor._fw_grad(/*level=*/0).defined(), op,
                                " has no forward-mode gradient (jvp), but an argument has a "
                                "tangent. Use backward or torch.func.vjp.");
  });
  return required;
}

void run_differentiated(const Gradient& gradient, const c10::OperatorHandle& handle,
                        c10::DispatchKeySet keys, c10::Stack* stack) {
  const size_t first = stack->size() - gradient.kinds.size();
  const auto [pointer, node] = make_node<NodePtr>(gradient);
  node->keep_arguments(stack->data() + first);
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    handle.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
  for (size_t i = first; i < stack->size(); ++i) {
    each_tensor((*stack)[i], [&, node = node, &owner = pointer](const at::Tensor& result) {
      if (torch::autograd::isDifferentiableType(result.scalar_type())) {
        torch::autograd::set_history(result, owner);
      } else {
        node->add_input_metadata(Node::undefined_input());
      }
      if (gradient.keeps_outputs) node->keep_output(result);
    });
  }
}

}  // namespace torch_tpu::dispatch
