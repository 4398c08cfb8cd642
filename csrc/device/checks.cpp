#include "csrc/device/checks.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "csrc/base/journal.h"

namespace torch_tpu::device {
namespace {

using Kind = ops::ValueCheck::Kind;
using trace::Flags;
using trace::FlagsPtr;
using trace::Guard;

bool of_linear_algebra(const Flags::Place& place) {
  return place.check->kind == Kind::kMatrix || place.check->kind == Kind::kBatch;
}

// PyTorch itself words the error, from an info tensor like the one that has failed.
void raise_linalg_error(int64_t value, const std::string& api_name, bool is_matrix) {
  const int64_t element = value >> 32;
  at::Tensor info = at::zeros({element + 1}, at::kInt);
  info.select(0, element).fill_(static_cast<int32_t>(value));
  at::_linalg_check_errors(is_matrix ? info.select(0, 0) : info, api_name, is_matrix);
}

[[noreturn]] void throw_violation(Flags& flags, size_t index) {
  const Flags::Place& place = flags.place(index);
  const ops::ValueCheck& check = *place.check;
  const int64_t value = flags.value(index);
  if (of_linear_algebra(place)) {
    raise_linalg_error(value, check.message, check.kind == Kind::kMatrix);
  }
  std::string text = check.message;
  if (const size_t at = text.find("{}"); at != std::string::npos) {
    text.replace(at, 2, std::to_string(value));
  }
  if (place.op != nullptr) {
    const std::string line = trace::describe(place.line);
    text += "\nIssued by " + *place.op + (line.empty() ? "" : " at " + line) + ".";
  }
  TORCH_CHECK_INDEX(check.kind != Kind::kIndex, text);
  TORCH_CHECK(false, text);
}

// What a thread issued and has not been told of, in that order.
struct Issued {
  std::vector<std::pair<FlagsPtr, uint32_t>> flags;
  std::vector<std::exception_ptr> errors;
  size_t look_at = 64;  // flags that make it worth looking which are in order
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<uint32_t, Issued> threads;
};

// Leaked: threads may end after static destructors ran.
Registry& registry() {
  static auto* all = new Registry();
  return *all;
}

// Once the first is told, so are those behind it: had it been raised at once, the calls that found
// them would not have been made.
void report_from(const std::vector<std::pair<FlagsPtr, uint32_t>>& issued, const Flags& flags,
                 size_t index) {
  bool behind = false;
  for (const auto& [other, at] : issued) {
    behind = behind || (other.get() == &flags && at == index);
    if (behind) other->report(at);
  }
}

[[noreturn]] void raise(Flags& flags, size_t index) {
  flags.report(index);
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    const auto at = all.threads.find(flags.place(index).thread);
    if (at != all.threads.end()) report_from(at->second.flags, flags, index);
  }
  throw_violation(flags, index);
}

// Forgets what a thread issued when that ends: nobody is left to tell.
struct ThreadEnd {
  ~ThreadEnd() {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.threads.erase(trace::this_thread());
  }
};

// Enough to bound memory in a loop that never reads.
constexpr size_t kMaxIssued = 4096;

bool settled(const std::pair<FlagsPtr, uint32_t>& item) {
  return item.first->good() || item.first->reported(item.second);
}

void note(const FlagsPtr& flags) {
  thread_local const ThreadEnd at_end;
  static_cast<void>(at_end);
  std::vector<std::pair<FlagsPtr, uint32_t>> done;  // freed outside the lock
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (uint32_t i = 0; i < flags->size(); ++i) {
    Issued& issued = all.threads[flags->place(i).thread];
    issued.flags.emplace_back(flags, i);
    if (issued.flags.size() < issued.look_at) continue;
    const auto middle = std::stable_partition(issued.flags.begin(), issued.flags.end(),
                                              [](const auto& item) { return !settled(item); });
    done.insert(done.end(), std::make_move_iterator(middle),
                std::make_move_iterator(issued.flags.end()));
    issued.flags.erase(middle, issued.flags.end());
    if (issued.flags.size() > kMaxIssued) {  // values still raise what is dropped here
      issued.flags.erase(issued.flags.begin(), issued.flags.end() - kMaxIssued);
    }
    issued.look_at = std::max<size_t>(64, 2 * issued.flags.size());
  }
}

}  // namespace

namespace {
std::atomic<bool> late{false};
}  // namespace

void set_late_checks(bool on) { late.store(on); }

FlagsPtr make_flags(std::vector<pjrt::Buffer> buffers, Flags::Places places, Flags::Owner program) {
  auto flags =
      c10::make_intrusive<Flags>(std::move(buffers), std::move(places), std::move(program));
  note(flags);
  return flags;
}

void raise_known(Flags& flags) {
  for (size_t i = 0; i < flags.size(); ++i) {
    if (of_linear_algebra(flags.place(i))) {
      const base::journal::Span span(base::journal::Kind::kHostRead, "linear-algebra check");
      if (flags.violated(i)) raise(flags, i);
    } else if (late.load(std::memory_order_relaxed) || !flags.known()) {
      return;
    } else if (flags.violated(i)) {
      raise(flags, i);
    }
  }
}

void raise_violations(const trace::GuardsPtr& guards) {
  if (!guards) return;
  for (const Guard& guard : guards->all) {
    if (guard.raises()) raise(*guard.flags, guard.index);
  }
}

void raise_unreported() {
  Issued issued;
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    const auto at = all.threads.find(trace::this_thread());
    if (at == all.threads.end()) return;
    std::swap(issued, at->second);
  }
  if (!issued.errors.empty()) std::rethrow_exception(issued.errors[0]);
  for (const auto& [flags, index] : issued.flags) {
    if (!flags->violated(index) || flags->reported(index)) continue;
    report_from(issued.flags, *flags, index);
    raise(*flags, index);
  }
}

void note_error(uint32_t thread, std::exception_ptr error) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  Issued& issued = all.threads[thread];
  if (issued.errors.size() < 16) issued.errors.push_back(std::move(error));
}

std::exception_ptr violation(Flags& flags, size_t index) {
  try {
    throw_violation(flags, index);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace torch_tpu::device
