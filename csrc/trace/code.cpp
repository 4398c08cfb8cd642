#include "csrc/trace/code.h"

#include <utility>

#include "csrc/base/gil.h"

namespace torch_tpu::trace {

bool Code::claim() noexcept {
  State absent = State::kAbsent;
  return state_.compare_exchange_strong(absent, State::kCompiling, std::memory_order_acq_rel);
}

void Code::enter(State state) noexcept {
  state_.store(state, std::memory_order_release);
  state_.notify_all();
}

void Code::publish(pjrt::LoadedExecutable executable, Origin origin, double compile_seconds,
                   bool quick) {
  temp_bytes_.store(executable.executable().temp_bytes(), std::memory_order_relaxed);
  first_ = std::move(executable);
  origin_ = origin;
  compile_seconds_.store(compile_seconds, std::memory_order_relaxed);
  quality_.store(quick ? Quality::kQuick : Quality::kBest, std::memory_order_release);
  enter(State::kReady);
}

bool Code::claim_better() noexcept {
  Quality quick = Quality::kQuick;
  return quality_.compare_exchange_strong(quick, Quality::kImproving, std::memory_order_acq_rel);
}

void Code::improve(pjrt::LoadedExecutable executable, double compile_seconds) {
  temp_bytes_.store(executable.executable().temp_bytes(), std::memory_order_relaxed);
  compile_seconds_.store(compile_seconds, std::memory_order_relaxed);
  better_ = std::move(executable);
  current_.store(&better_, std::memory_order_release);
  quality_.store(Quality::kBest, std::memory_order_release);
}

void Code::stay_quick() noexcept { quality_.store(Quality::kQuick, std::memory_order_release); }

void Code::leave_quick() noexcept { quality_.store(Quality::kBest, std::memory_order_release); }

void Code::fail(std::string why) noexcept {
  failure_ = std::move(why);
  enter(State::kFailed);
}

void Code::abandon() noexcept { enter(State::kAbsent); }

void Code::wait() const {
  if (state() != State::kCompiling) return;
  const base::WithoutGil released;  // compiling may need it
  state_.wait(State::kCompiling, std::memory_order_acquire);
}

}  // namespace torch_tpu::trace
