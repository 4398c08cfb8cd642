#include "csrc/trace/flags.h"

#include <algorithm>
#include <cstring>

#include "csrc/pjrt/runtime.h"

namespace torch_tpu::trace {
namespace {

constexpr size_t kBytes = sizeof(int64_t);

size_t count_of(const pjrt::Buffer& buffer, size_t buffers, size_t flags) {
  if (buffers == flags) return 1;
  size_t count = 1;
  for (const int64_t dim : buffer.dims()) count *= static_cast<size_t>(dim);
  return count;
}

}  // namespace

Flags::Flags(std::vector<pjrt::Buffer> buffers, Places places, Owner owner)
    : buffers_(std::move(buffers)),
      values_(places.size(), ops::kNoViolation),
      places_(std::move(places)),
      owner_(std::move(owner)),
      reported_(new std::atomic<uint64_t>[places_.size()]) {
  for (size_t i = 0; i < places_.size(); ++i) reported_[i].store(0);
  if (pjrt::Runtime::get().host_addressable()) return;
  for (const pjrt::Buffer& buffer : buffers_) {
    early_.emplace_back(std::in_place, buffer,
                        count_of(buffer, buffers_.size(), places_.size()) * kBytes);
  }
}

std::atomic<uint64_t> Flags::reports_{0};

void Flags::report(size_t index) noexcept {
  if (reported(index)) return;
  reported_[index].store(reports_.fetch_add(1) + 1, std::memory_order_release);
}

Flags::State Flags::look(bool wait) noexcept {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (wait) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return State::kUnknown;  // somebody waits for them
  }
  if (const State state = state_.load(std::memory_order_acquire); state != State::kUnknown) {
    return state;
  }
  try {
    if (!wait) {
      for (const pjrt::Buffer& buffer : buffers_) {
        if (!buffer.is_ready()) return State::kUnknown;
      }
      for (const auto& early : early_) {
        if (!early->ready()) return State::kUnknown;
      }
    }
    size_t at = 0;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const size_t count = count_of(buffers_[i], buffers_.size(), values_.size());
      if (early_.empty()) {
        pjrt::read_dense(buffers_[i], values_.data() + at, count * kBytes);
      } else {
        std::memcpy(values_.data() + at, early_[i]->wait(), count * kBytes);
      }
      at += count;
    }
  } catch (...) {
    std::fill(values_.begin(), values_.end(), ops::kNoViolation);
  }
  early_.clear();
  buffers_.clear();
  const bool good = std::all_of(values_.begin(), values_.end(),
                                [](int64_t value) { return value == ops::kNoViolation; });
  state_.store(good ? State::kGood : State::kViolated, std::memory_order_release);
  return good ? State::kGood : State::kViolated;
}

bool Flags::known() noexcept {
  return state_.load(std::memory_order_acquire) != State::kUnknown ||
         look(/*wait=*/false) != State::kUnknown;
}

bool Flags::good() noexcept {
  const State state = state_.load(std::memory_order_acquire);
  return (state == State::kUnknown ? look(/*wait=*/false) : state) == State::kGood;
}

int64_t Flags::value(size_t index) noexcept {
  if (state_.load(std::memory_order_acquire) == State::kUnknown) look(/*wait=*/true);
  return values_[index];
}

bool Guard::settled(uint64_t reports) const noexcept {
  return flags->good() || (!spoils && flags->reported_by(index, reports));
}

bool Guard::raises(uint64_t reports) const noexcept {
  return flags->violated(index) && (spoils || !flags->reported_by(index, reports));
}

void GuardUnion::put(const Guard& guard) {
  if (guard.settled(reports_)) return;
  if (!several_) several_ = c10::make_intrusive<Guards>();
  for (Guard& known : several_->all) {
    if (known.flags != guard.flags || known.index != guard.index) continue;
    known.spoils |= guard.spoils;
    return;
  }
  several_->all.push_back(guard);
}

void GuardUnion::add_slowly(const GuardsPtr& guards) {
  if (empty()) {
    one_ = guards;
    return;
  }
  if (one_) {
    const GuardsPtr first = std::move(one_);
    for (const Guard& guard : first->all) put(guard);
  }
  for (const Guard& guard : guards->all) put(guard);
}

void GuardUnion::add(FlagsPtr flags, uint32_t index, bool spoils) {
  if (one_) {
    const GuardsPtr first = std::move(one_);
    for (const Guard& guard : first->all) put(guard);
  }
  put({std::move(flags), index, spoils});
}

void GuardUnion::add_without_spoiling(const GuardsPtr& guards) {
  if (!guards) return;
  for (const Guard& guard : guards->all) add(guard.flags, guard.index, false);
}

GuardsPtr GuardUnion::take() {
  if (!one_) return std::move(several_);
  // What is known to be in order by now is left behind, so that chains of values do not keep it.
  const GuardsPtr first = std::move(one_);
  if (std::none_of(first->all.begin(), first->all.end(),
                   [&](const Guard& guard) { return guard.settled(reports_); })) {
    return first;
  }
  for (const Guard& guard : first->all) put(guard);
  return std::move(several_);
}

}  // namespace torch_tpu::trace
