#include "csrc/trace/value.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iterator>
#include <memory>
#include <vector>

#include <c10/util/Exception.h>

#include "csrc/base/env.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/memory_history.h"

namespace torch_tpu::trace {
namespace {

int64_t value_bytes(stablehlo::DType dtype, ShapeRef dims) {
  return numel(dims) * stablehlo::dtype_bytes(dtype);
}

// Computed, failed, or given away (donated): not running any more. Errors show when it is read.
bool finished(const pjrt::Buffer& buffer) noexcept {
  try {
    return buffer.is_ready();
  } catch (...) {
    return true;
  }
}

bool finished(const pjrt::Event& event) noexcept {
  try {
    return event.is_ready();
  } catch (...) {
    return true;
  }
}

std::string format_bytes(int64_t bytes) {
  static const char* const kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double amount = static_cast<double>(bytes);
  size_t unit = 0;
  while (amount >= 1024.0 && unit + 1 < std::size(kUnits)) {
    amount /= 1024.0;
    ++unit;
  }
  char text[64];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", amount, kUnits[unit]);
  return text;
}

}  // namespace

DeviceValue::DeviceValue(State state, PJRT_Buffer* buffer, stablehlo::DType dtype, ShapeRef dims,
                         ShapeRef strides, int device, bool donatable)
    : buffer_(pjrt::Runtime::get().api(), buffer),
      dims_(dims.begin(), dims.end()),
      strides_(strides.begin(), strides.end()),
      bytes_(value_bytes(dtype, dims)),
      device_(device),
      dtype_(dtype),
      donatable_(donatable),
      contiguous_(is_contiguous(dims, strides)),
      state_(state) {
  if (MemoryHistory::on()) [[unlikely]]
    MemoryHistory::made(this);
}

DeviceValue::DeviceValue(PJRT_Buffer* buffer, stablehlo::DType dtype, ShapeRef dims,
                         ShapeRef strides, int device, bool donatable)
    : DeviceValue(State::kReady, buffer, dtype, dims, strides, device, donatable) {
  Ledger::of(device_).enter(this);
}

DeviceValue::DeviceValue(int64_t recorded_id, stablehlo::DType dtype, ShapeRef dims,
                         ShapeRef strides, int device)
    : DeviceValue(State::kRecorded, nullptr, dtype, dims, strides, device, false) {
  recorded_id_ = recorded_id;
}

DeviceValue::DeviceValue(stablehlo::DType dtype, ShapeRef dims, ShapeRef strides, int device)
    : DeviceValue(State::kPending, nullptr, dtype, dims, strides, device, true) {}

DeviceValue::DeviceValue(PromisePtr promise, stablehlo::DType dtype, ShapeRef dims,
                         ShapeRef strides, int device)
    : DeviceValue(State::kPromised, nullptr, dtype, dims, strides, device, true) {
  promise_ = std::move(promise);
}

namespace {
DeviceValue::Runner the_runner;  // set while the module is imported, before the first op
}  // namespace

void DeviceValue::set_runner(Runner runner) noexcept { the_runner = runner; }

const pjrt::Buffer& DeviceValue::demand() const {
  if (state_.load(std::memory_order_acquire) == State::kRecorded) {
    throw RecordedValue(
        "the elements of a tensor are needed while its ops are only being recorded: a function "
        "that "
        "is compiled or exported reads them, or has made the tensor and left it somewhere (a "
        "global, an attribute, a cache). Make such a tensor before the function is called");
  }
  pjrt::Runtime::get();  // throws in a forked child, where nobody would launch it or keep a promise
  std::exception_ptr no_room;
  if (pending()) no_room = the_runner.launch(device_);
  if (only_padded()) the_runner.compact(const_cast<DeviceValue&>(*this));
  if (state_.load(std::memory_order_acquire) == State::kPromised) {
    promise_->wait();
    promise_->rethrow();
    // Only now, not when the memory came: until the promise was kept, its keeper held a reference,
    // and who may donate the value depends on the references.
    state_.store(State::kReady, std::memory_order_release);
  }
  const State state = state_.load(std::memory_order_acquire);
  if (state == State::kSame) return same_->obtain();
  if (state == State::kFailed) std::rethrow_exception(error_);
  if (state == State::kPending && no_room) std::rethrow_exception(no_room);
  TORCH_INTERNAL_ASSERT(state == State::kReady, "a value was not launched");
  return buffer_;
}

void DeviceValue::settle(PJRT_Buffer* buffer, GuardsPtr guards) {
  // A padded value that gets memory of its own keeps what it depends on.
  if (guards) guards_ = std::move(guards);
  buffer_ = pjrt::Buffer(pjrt::Runtime::get().api(), buffer);
  Ledger::of(device_).enter(this);
  state_.store(State::kReady, std::memory_order_release);
}

void DeviceValue::read_early() {
  if (pjrt::Runtime::get().host_addressable()) return;
  early_ = std::make_unique<pjrt::EarlyRead>(obtain(), static_cast<size_t>(bytes_));
}

PJRT_Buffer* DeviceValue::take() {
  obtain();
  Ledger::of(device_).leave(this);
  entered_ = false;
  return buffer_.release();
}

void DeviceValue::deliver(PJRT_Buffer* buffer) {
  buffer_ = pjrt::Buffer(pjrt::Runtime::get().api(), buffer);
  Ledger::of(device_).enter(this);
}

void DeviceValue::settle_padded(ValuePtr padded, GuardsPtr guards) {
  padded_ = std::move(padded);
  guards_ = std::move(guards);
  state_.store(State::kPadded, std::memory_order_release);
}

void DeviceValue::settle_as(ValuePtr same, GuardsPtr guards) {
  guards_ = std::move(guards);
  if (same->held_only_by(1)) {
    settle(same->take());
    return;
  }
  same_ = std::move(same);
  state_.store(State::kSame, std::memory_order_release);
}

void DeviceValue::fail(std::exception_ptr error) noexcept {
  error_ = std::move(error);
  state_.store(State::kFailed, std::memory_order_release);
}

DeviceValue::~DeviceValue() {
  if (entered_) Ledger::of(device_).leave(this);
  if (MemoryHistory::on()) [[unlikely]]
    MemoryHistory::gone(this);
}

Ledger::Ledger(int device) : limit_(base::env_memory_limit()), device_(device) {}

Ledger& Ledger::of(int device) {
  // Leaked: values may be freed by Python objects that outlive static destructors.
  static auto* ledgers = [] {
    auto* all = new std::array<std::unique_ptr<Ledger>, kMaxDevices>();
    for (int i = 0; i < kMaxDevices; ++i) (*all)[static_cast<size_t>(i)].reset(new Ledger(i));
    return all;
  }();
  return *(*ledgers)[static_cast<size_t>(device)];
}

void Ledger::enter(DeviceValue* value) {
  std::lock_guard lock(mutex_);
  value->entered_ = true;
  value->next_ = head_;
  if (head_ != nullptr) head_->prev_ = value;
  head_ = value;
  counts_.current_bytes += value->bytes_;
  counts_.total_allocated += value->bytes_;
  counts_.current_values += 1;
  counts_.allocations += 1;
  if (MemoryHistory::on()) [[unlikely]]
    MemoryHistory::entered(value, value->bytes_, device_);
  if (counts_.current_bytes > counts_.peak_bytes) counts_.peak_bytes = counts_.current_bytes;
  if (counts_.current_values > counts_.peak_values) counts_.peak_values = counts_.current_values;
}

void Ledger::unlink(DeviceValue* value) noexcept {
  if (value->prev_ != nullptr) {
    value->prev_->next_ = value->next_;
  } else if (value->known_ready_) {
    ready_head_ = value->next_;
  } else {
    head_ = value->next_;
  }
  if (value->next_ != nullptr) value->next_->prev_ = value->prev_;
}

void Ledger::leave(DeviceValue* value) noexcept {
  // In a forked child the lock may be held for ever, and the memory is the parent's.
  if (pjrt::Runtime::in_bad_fork()) return;
  std::lock_guard lock(mutex_);
  unlink(value);
  if (!value->known_ready_) remember_dropped(*value);
  counts_.current_bytes -= value->bytes_;
  counts_.total_freed += value->bytes_;
  counts_.current_values -= 1;
  counts_.frees += 1;
  if (MemoryHistory::on()) [[unlikely]]
    MemoryHistory::left(value);
}

void Ledger::remember_dropped(const DeviceValue& value) noexcept {
  if (finished(value.buffer_)) return;
  try {
    if (dropped_.size() >= settle_at_) {
      settle();
      settle_at_ = std::max<size_t>(64, 2 * dropped_.size());
    }
    dropped_.push_back(std::make_shared<pjrt::Event>(value.buffer_.ready_event()));
  } catch (...) {
    // Nothing to wait for then.
  }
}

void Ledger::settle() noexcept {
  for (DeviceValue* value = head_; value != nullptr;) {
    DeviceValue* next = value->next_;
    if (finished(value->buffer_)) {
      unlink(value);
      value->known_ready_ = true;
      value->prev_ = nullptr;
      value->next_ = ready_head_;
      if (ready_head_ != nullptr) ready_head_->prev_ = value;
      ready_head_ = value;
    }
    value = next;
  }
  std::erase_if(dropped_, [](const auto& event) { return finished(*event); });
  std::erase_if(promises_, [](const auto& promise) { return promise->done(); });
}

void Ledger::add(PromisePtr promise) {
  std::lock_guard lock(mutex_);
  std::erase_if(promises_, [](const auto& old) { return old->done(); });
  promises_.push_back(std::move(promise));
}

void Ledger::synchronize() {
  std::vector<PromisePtr> promises;
  std::vector<std::shared_ptr<pjrt::Event>> events;
  std::exception_ptr first_error;
  const auto attempt = [&](const auto& step) {
    try {
      step();
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  };
  {
    std::lock_guard lock(mutex_);
    promises = promises_;
  }
  for (const PromisePtr& promise : promises) {
    promise->wait();
    attempt([&] { promise->rethrow(); });
  }
  {
    std::lock_guard lock(mutex_);
    for (DeviceValue* value = head_; value != nullptr; value = value->next_) {
      // A donated buffer that is being consumed reports an error of its own; its consumer's
      // outputs are in the list too.
      attempt([&] {
        if (value->buffer_.is_deleted()) return;
        auto event = std::make_shared<pjrt::Event>(value->buffer_.ready_event());
        // Asked again: a program of another thread may have taken it in between.
        if (!value->buffer_.is_deleted()) events.push_back(std::move(event));
      });
    }
    events.insert(events.end(), dropped_.begin(), dropped_.end());
  }
  for (const auto& event : events) attempt([&] { event->await(); });
  {
    // Only now: another thread that synchronizes meanwhile has to find them.
    std::lock_guard lock(mutex_);
    settle();
  }
  if (first_error) std::rethrow_exception(first_error);
}

bool Ledger::idle() {
  std::lock_guard lock(mutex_);
  settle();
  return head_ == nullptr && dropped_.empty() && promises_.empty();
}

bool Ledger::programs_idle() {
  std::lock_guard lock(mutex_);
  settle();
  return head_ == nullptr && dropped_.empty();
}

void Ledger::when_idle(std::function<void()> done) {
  // Shared by the callbacks; the last one to finish calls `done`.
  struct Countdown {
    std::atomic<int64_t> left{1};
    std::function<void()> done;
    void step() {
      if (left.fetch_sub(1) == 1) done();
    }
  };
  auto countdown = std::make_shared<Countdown>();
  countdown->done = std::move(done);
  std::vector<std::shared_ptr<pjrt::Event>> events;
  std::vector<PromisePtr> promises;
  {
    std::lock_guard lock(mutex_);
    settle();
    events = dropped_;
    promises = promises_;
    for (DeviceValue* value = head_; value != nullptr; value = value->next_) {
      try {
        events.push_back(std::make_shared<pjrt::Event>(value->buffer_.ready_event()));
      } catch (...) {
        // Errored: finished as far as timing goes.
      }
    }
  }
  countdown->left.fetch_add(static_cast<int64_t>(events.size() + promises.size()));
  for (const PromisePtr& promise : promises) promise->on_done([countdown] { countdown->step(); });
  for (const auto& event : events) {
    try {
      event->on_ready([countdown](const pjrt::Error*) { countdown->step(); });
    } catch (...) {
      countdown->step();
    }
  }
  countdown->step();
}

MemoryCounts Ledger::counts() {
  std::lock_guard lock(mutex_);
  MemoryCounts counts = counts_;
  counts.peak_reserved_bytes = std::max(counts.peak_reserved_bytes, counts.peak_bytes);
  return counts;
}

void Ledger::reset_peak() {
  std::lock_guard lock(mutex_);
  counts_.peak_bytes = counts_.peak_reserved_bytes = counts_.current_bytes;
  counts_.peak_values = counts_.current_values;
}

void Ledger::reset_accumulated() {
  std::lock_guard lock(mutex_);
  counts_.total_allocated = counts_.total_freed = 0;
  counts_.allocations = counts_.frees = 0;
  counts_.out_of_memory = 0;
}

void Ledger::count_out_of_memory() {
  std::lock_guard lock(mutex_);
  counts_.out_of_memory += 1;
}

void Ledger::check_room(int64_t bytes) {
  const int64_t limit = limit_.load(std::memory_order_relaxed);
  if (limit == 0) return;
  int64_t current;
  {
    std::lock_guard lock(mutex_);
    current = counts_.current_bytes;
  }
  if (current + bytes > limit) {
    throw_out_of_memory(bytes, "The limit set for this process is " + format_bytes(limit) + ".");
  }
}

void Ledger::note_run(int64_t bytes) {
  std::lock_guard lock(mutex_);
  counts_.peak_reserved_bytes =
      std::max(counts_.peak_reserved_bytes, counts_.current_bytes + bytes);
}

void Ledger::throw_out_of_memory(int64_t bytes, const std::string& detail) {
  int64_t current;
  {
    std::lock_guard lock(mutex_);
    counts_.out_of_memory += 1;
    current = counts_.current_bytes;
  }
  std::string text = "TPU out of memory. Tried to allocate " + format_bytes(bytes) +
                     ". tpu:" + std::to_string(device_) + " holds " + format_bytes(current);
  const int64_t total = pjrt::Runtime::get().device_memory(device_);
  if (total > 0) text += " of " + format_bytes(total);
  text += " in live tensors. " + detail +
          " Free tensors you no longer need, or see torch.tpu.memory_summary().";
  throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
}

void Ledger::set_limit(int64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }

}  // namespace torch_tpu::trace
