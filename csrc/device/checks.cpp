#include "csrc/device/checks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "csrc/base/journal.h"
#include "csrc/ops/source.h"
#include "csrc/pjrt/read.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::device {
namespace {

using Kind = ops::ValueCheck::Kind;

// The flags of a program, on their way to the host. Where a transfer takes its time it starts with
// the program, so that the read which raises finds it done.
class Flags {
 public:
  Flags(trace::ValuePtr flags, size_t count) : flags_(std::move(flags)), values_(count) {
    if (!pjrt::Runtime::get().host_addressable()) early_.emplace(flags_->buffer(), bytes());
  }

  const std::vector<int64_t>& read() {
    if (early_) {
      std::memcpy(values_.data(), early_->wait(), bytes());
    } else if (flags_) {
      pjrt::read_dense(flags_->buffer(), values_.data(), bytes());
    }
    early_.reset();
    flags_.reset();
    return values_;
  }

 private:
  size_t bytes() const { return values_.size() * sizeof(int64_t); }

  trace::ValuePtr flags_;  // until they are read
  std::vector<int64_t> values_;
  std::optional<pjrt::EarlyRead> early_;
};

struct Pending {
  Flags flags;
  FlagSources sources;
  Owner program;

  Pending(trace::ValuePtr value, FlagSources from, Owner owner)
      : flags(std::move(value), from.size()), sources(std::move(from)), program(std::move(owner)) {}
};

std::mutex mutex;
std::vector<Pending>& pending() {
  static auto* all = new std::vector<Pending>();
  return *all;
}
std::atomic<bool> any_pending{false};

// Enough to bound memory in a loop that never reads; the flags are then looked at early.
constexpr size_t kMaxPending = 4096;

std::atomic<LineText> line_text_hook{nullptr};

// PyTorch itself words the error, from an info tensor like the one that has failed.
void raise_linalg_error(int64_t value, const std::string& api_name, bool is_matrix) {
  const int64_t element = value >> 32;
  at::Tensor info = at::zeros({element + 1}, at::kInt);
  info.select(0, element).fill_(static_cast<int32_t>(value));
  at::_linalg_check_errors(is_matrix ? info.select(0, 0) : info, api_name, is_matrix);
}

void raise_if_violated(int64_t value, const ops::ValueCheck& check,
                       const std::string& issued = {}) {
  if (value == ops::kNoViolation) return;
  if (check.kind == Kind::kMatrix || check.kind == Kind::kBatch) {
    raise_linalg_error(value, check.message, check.kind == Kind::kMatrix);
  }
  std::string text = check.message;
  if (const size_t at = text.find("{}"); at != std::string::npos) {
    text.replace(at, 2, std::to_string(value));
  }
  text += issued;
  TORCH_CHECK_INDEX(check.kind != Kind::kIndex, text);
  TORCH_CHECK(false, text);
}

bool violated(Pending& item) {
  const std::vector<int64_t>& values = item.flags.read();
  return std::any_of(values.begin(), values.end(),
                     [](int64_t value) { return value != ops::kNoViolation; });
}

// Past the bound those in order are dropped, so that only violations wait for the next read.
void add(Pending item) {
  std::vector<Pending> full;
  {
    std::lock_guard lock(mutex);
    pending().push_back(std::move(item));
    any_pending.store(true, std::memory_order_release);
    if (pending().size() < kMaxPending) return;
    full.swap(pending());
  }
  std::erase_if(full, [](Pending& old) { return !violated(old); });
  std::lock_guard lock(mutex);
  pending().insert(pending().begin(), std::make_move_iterator(full.begin()),
                   std::make_move_iterator(full.end()));
}

}  // namespace

void check_flags(std::span<Flag> flags, const Owner& program) {
  bool waits = !pjrt::Runtime::get().host_addressable();
  for (auto& [flag, what] : flags) {
    const ops::ValueCheck& check = *what;
    // PyTorch reads the info of a factorization before it goes on, on every device.
    if (check.kind == Kind::kMatrix || check.kind == Kind::kBatch) {
      const base::journal::Span span(base::journal::Kind::kHostRead, "linear-algebra check");
      raise_if_violated(Flags(std::move(flag), 1).read()[0], check);
      continue;
    }
    waits = waits || !flag->buffer().is_ready();
    if (waits) {  // so do those behind it
      add(Pending(std::move(flag), {{&check, nullptr, {}}}, program));
    } else {
      raise_if_violated(*static_cast<const int64_t*>(flag->buffer().unsafe_pointer()), check);
    }
  }
}

void queue_flags(trace::ValuePtr flags, FlagSources sources, Owner program) {
  add(Pending(std::move(flags), std::move(sources), std::move(program)));
}

void set_line_text(LineText text) { line_text_hook.store(text); }

std::string line_text(const trace::IssueLine& line) {
  const LineText hook = line_text_hook.load();
  return hook == nullptr ? std::string() : hook(line);
}

void raise_pending_checks(int) {
  if (!any_pending.load(std::memory_order_acquire)) return;
  std::vector<Pending> taken;
  {
    std::lock_guard lock(mutex);
    taken.swap(pending());
    any_pending.store(false, std::memory_order_release);
  }
  for (Pending& item : taken) {
    const std::vector<int64_t>& values = item.flags.read();
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == ops::kNoViolation) continue;
      const FlagSource& source = item.sources[i];
      std::string issued;
      if (source.op != nullptr) issued = "\nIssued by " + *source.op + line_text(source.line) + ".";
      raise_if_violated(values[i], *source.check, issued);
    }
  }
}

}  // namespace torch_tpu::device
