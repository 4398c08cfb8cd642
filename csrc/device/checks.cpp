#include "csrc/device/checks.h"

#include <atomic>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "csrc/base/journal.h"
#include "csrc/ops/source.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::device {
namespace {

using Kind = ops::ValueCheck::Kind;

struct Pending {
  trace::ValuePtr flag;
  ops::ValueCheck check;
};

std::mutex mutex;
std::vector<Pending>& pending() {
  static auto* all = new std::vector<Pending>();
  return *all;
}
std::atomic<bool> any_pending{false};

// Enough to bound memory in a loop that never reads; older flags are then looked at early.
constexpr size_t kMaxPending = 4096;

int64_t read(const trace::DeviceValue& flag) {
  int64_t value = 0;
  flag.buffer().copy_to_host(&value, sizeof value).await();
  return value;
}

// PyTorch itself words the error, from an info tensor like the one that has failed.
void raise_linalg_error(int64_t value, const std::string& api_name, bool is_matrix) {
  const int64_t element = value >> 32;
  at::Tensor info = at::zeros({element + 1}, at::kInt);
  info.select(0, element).fill_(static_cast<int32_t>(value));
  at::_linalg_check_errors(is_matrix ? info.select(0, 0) : info, api_name, is_matrix);
}

void raise_if_violated(int64_t value, const ops::ValueCheck& check) {
  if (value == ops::kNoViolation) return;
  if (check.kind == Kind::kMatrix || check.kind == Kind::kBatch) {
    raise_linalg_error(value, check.message, check.kind == Kind::kMatrix);
  }
  std::string text = check.message;
  if (const size_t at = text.find("{}"); at != std::string::npos) {
    text.replace(at, 2, std::to_string(value));
  }
  TORCH_CHECK_INDEX(check.kind != Kind::kIndex, text);
  TORCH_CHECK(false, text);
}

}  // namespace

void check_flag(trace::ValuePtr flag, const ops::ValueCheck& check) {
  // PyTorch reads the info of a factorization before it goes on, on every device.
  if (check.kind == Kind::kMatrix || check.kind == Kind::kBatch) {
    const base::journal::Span span(base::journal::Kind::kHostRead, "linear-algebra check");
    raise_if_violated(read(*flag), check);
    return;
  }
  if (pjrt::Runtime::get().host_addressable() && flag->buffer().is_ready()) {
    const auto* value = static_cast<const int64_t*>(flag->buffer().unsafe_pointer());
    raise_if_violated(*value, check);
    return;
  }
  size_t size;
  const int device = flag->device();
  {
    std::lock_guard lock(mutex);
    pending().push_back({std::move(flag), check});
    size = pending().size();
    any_pending.store(true, std::memory_order_release);
  }
  if (size > kMaxPending) raise_pending_checks(device);
}

void raise_pending_checks(int) {
  if (!any_pending.load(std::memory_order_acquire)) return;
  std::vector<Pending> taken;
  {
    std::lock_guard lock(mutex);
    taken.swap(pending());
    any_pending.store(false, std::memory_order_release);
  }
  for (const Pending& item : taken) raise_if_violated(read(*item.flag), item.check);
}

}  // namespace torch_tpu::device
