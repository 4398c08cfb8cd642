// _ctc_loss with lengths as numbers: they are uploaded, since as part of the key every batch would
// compile a program of its own. Bad arguments go to the CPU kernel for its errors.
#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <torch/library.h>

#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/op.h"
#include "csrc/dispatch/tiers/fallback.h"

namespace torch_tpu::dispatch {
namespace {

using c10::IntArrayRef;

at::Tensor on_device(const std::vector<int64_t>& numbers, IntArrayRef sizes, int device) {
  const at::Tensor host = at::tensor(numbers, at::kLong).view(sizes);
  return device::make_tensor(host.sizes(), host.strides(), host.scalar_type(), device,
                             device::upload(host, device));
}

struct Problem {
  const at::Tensor& log_probs;
  const at::Tensor& targets;
  IntArrayRef input_lengths, target_lengths;
  int64_t blank;

  int64_t batch() const { return log_probs.size(1); }
  int64_t longest() const {
    return target_lengths.empty() ? 0
                                  : *std::max_element(target_lengths.begin(), target_lengths.end());
  }
  int device() const { return log_probs.device().index(); }

  bool good() const {
    if (log_probs.dim() != 3 || targets.dim() < 1 || targets.dim() > 2) return false;
    if (targets.device() != log_probs.device()) return false;
    if (!c10::isFloatingType(log_probs.scalar_type())) return false;
    if (targets.scalar_type() != at::kLong && targets.scalar_type() != at::kInt) return false;
    const auto size = static_cast<size_t>(batch());
    if (blank < 0 || blank >= log_probs.size(2)) return false;
    if (size == 0 || input_lengths.size() != size || target_lengths.size() != size) return false;
    int64_t sum = 0;
    for (size_t i = 0; i < size; ++i) {
      if (target_lengths[i] < 0 || input_lengths[i] < 0) return false;
      if (input_lengths[i] > log_probs.size(0)) return false;
      sum += target_lengths[i];
    }
    if (targets.dim() == 1) return targets.size(0) == sum;
    return targets.size(0) == batch() && targets.size(1) >= longest();
  }

  // [batch, longest]; what is behind a shorter target is never looked at.
  at::Tensor target_matrix() const {
    const int64_t width = longest();
    if (targets.dim() == 2) return targets.narrow(1, 0, width);
    if (width == 0) return targets.new_empty({batch(), 0});
    std::vector<int64_t> places;
    int64_t start = 0;
    for (int64_t length : target_lengths) {
      for (int64_t i = 0; i < width; ++i) {
        places.push_back(std::min(start + i, targets.size(0) - 1));
      }
      start += length;
    }
    return targets.take(on_device(places, {batch(), width}, device()));
  }
  at::Tensor lengths(IntArrayRef numbers) const {
    return on_device(numbers.vec(), {batch()}, device());
  }
};

c10::Stack run_on_cpu_named(const char* name, c10::Stack stack) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  run_on_cpu(handle, &stack, "");
  return stack;
}

std::tuple<at::Tensor, at::Tensor> ctc_loss(const at::Tensor& log_probs, const at::Tensor& targets,
                                            IntArrayRef input_lengths, IntArrayRef target_lengths,
                                            int64_t blank, bool zero_infinity) {
  const Problem p{log_probs, targets, input_lengths, target_lengths, blank};
  c10::Stack stack;
  if (p.good()) {
    stack = {log_probs, p.target_matrix(), p.lengths(input_lengths), p.lengths(target_lengths),
             blank,     zero_infinity};
    run_op(find_op("aten::_ctc_loss.Tensor"), &stack);
  } else {
    stack = run_on_cpu_named("aten::_ctc_loss", {log_probs, targets, input_lengths, target_lengths,
                                                 blank, zero_infinity});
  }
  return {stack[0].toTensor(), stack[1].toTensor()};
}

at::Tensor ctc_loss_backward(const at::Tensor& grad, const at::Tensor& log_probs,
                             const at::Tensor& targets, IntArrayRef input_lengths,
                             IntArrayRef target_lengths, const at::Tensor& neg_log_likelihood,
                             const at::Tensor& log_alpha, int64_t blank, bool zero_infinity) {
  const Problem p{log_probs, targets, input_lengths, target_lengths, blank};
  c10::Stack stack;
  if (p.good()) {
    stack = {grad,
             log_probs,
             p.target_matrix(),
             p.lengths(input_lengths),
             p.lengths(target_lengths),
             neg_log_likelihood,
             log_alpha,
             blank,
             zero_infinity};
    run_op(find_op("aten::_ctc_loss_backward.Tensor"), &stack);
  } else {
    stack = run_on_cpu_named("aten::_ctc_loss_backward",
                             {grad, log_probs, targets, input_lengths, target_lengths,
                              neg_log_likelihood, log_alpha, blank, zero_infinity});
  }
  return stack[0].toTensor();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_ctc_loss", TORCH_FN(ctc_loss));
  m.impl("_ctc_loss_backward", TORCH_FN(ctc_loss_backward));
}

}  // namespace
}  // namespace torch_tpu::dispatch
