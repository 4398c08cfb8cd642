#include "csrc/dispatch/debug.h"

#include <sstream>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <c10/util/Exception.h>

#include "csrc/device/checks.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/pjrt/error.h"

namespace torch_tpu::dispatch {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

// Statistics are taken on the host copy: Debug may be slow, but must not disturb the device.
std::string statistics(const at::Tensor& host, bool& finite) {
  std::ostringstream text;
  if (host.numel() == 0) return "";
  const at::Tensor numbers = host.is_complex() ? host.abs() : host;
  const at::Tensor wide = numbers.to(at::kDouble);
  const at::Tensor good = at::isfinite(wide);
  const int64_t bad = host.numel() - good.sum().item<int64_t>();
  finite = bad == 0;
  const at::Tensor kept = wide.masked_select(good);
  if (kept.numel() > 0) {
    text << " min " << kept.min().item<double>() << ", max " << kept.max().item<double>()
         << ", mean " << kept.mean().item<double>();
  }
  if (bad > 0) {
    text << (kept.numel() > 0 ? "," : "") << " " << at::isnan(wide).sum().item<int64_t>()
         << " NaN and " << (bad - at::isnan(wide).sum().item<int64_t>()) << " Inf of "
         << host.numel();
  }
  return text.str();
}

}  // namespace

DebugCall::DebugCall(const Frame& frame) : op_(frame.op.name), device_(frame.device) {
  if (!debug_nans()) {
    // Cheap form: shapes only; statistics cost a transfer per input.
    for (const TensorRef& ref : frame.tensors) {
      if (ref.impl == nullptr) continue;
      std::ostringstream text;
      text << c10::toString(c10::typeMetaToScalarType(ref.impl->dtype())) << ref.impl->sizes();
      inputs_.push_back(text.str());
    }
    return;
  }
  for (const TensorRef& ref : frame.tensors) {
    if (ref.impl == nullptr) continue;
    const at::Tensor tensor(
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(ref.impl));
    std::string text = shape_text(tensor);
    const bool reads = ref.is_input || ref.form == trace::TensorArg::Form::kScalar;
    if (reads) {
      bool finite = true;
      text += statistics(tensor.device().is_cpu() ? tensor : device::download(tensor), finite);
      inputs_finite_ &= finite;
    }
    inputs_.push_back(std::move(text));
  }
}

std::string DebugCall::describe() const {
  std::ostringstream text;
  text << "\n  op: " << op_;
  for (size_t i = 0; i < inputs_.size(); ++i) text << "\n  input " << i << ": " << inputs_[i];
  const std::string where = python_location();
  text << "\n  at: " << (where.empty() ? "(no Python frame on this thread)" : where);
  return text.str();
}

void DebugCall::guard(const std::function<void()>& body) {
  try {
    body();
  } catch (const pjrt::Error& error) {
    TORCH_CHECK(false, error.what(), describe());
  }
}

void DebugCall::check(const Frame& frame, const Results& given) {
  guard([&] { trace::Ledger::of(device_).synchronize(); });
  device::raise_unreported();
  if (!debug_nans() || frame.op.entry->constant) return;  // a fill gives what it was told to
  std::vector<at::Tensor> results;
  for (const int written : frame.op.returns) {
    if (written < 0) continue;
    const c10::IValue& value = frame.args[written];
    if (value.isTensor()) results.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(tensor);
    }
  }
  results.insert(results.end(), given.fresh.begin(), given.fresh.end());
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& tensor = results[i];
    if (!tensor.defined() || !(tensor.is_floating_point() || tensor.is_complex())) continue;
    if (tensor.device().is_cpu()) continue;
    bool finite = true;
    const std::string text = statistics(device::download(tensor), finite);
    // An op that only passes on what it was given is not where the trouble started.
    if (!finite && inputs_finite_) {
      TORCH_CHECK(false, "NaN or Inf in result ", i, " of ", op_, " (", shape_text(tensor), text,
                  ")", describe());
    }
  }
}

}  // namespace torch_tpu::dispatch
