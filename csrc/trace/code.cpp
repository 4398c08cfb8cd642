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

void Code::publish(pjrt::LoadedExecutable executable, Origin origin, double compile_seconds) {
  temp_bytes_ = executable.executable().temp_bytes();
  executable_ = std::move(executable);
  origin_ = origin;
  compile_seconds_ = compile_seconds;
  enter(State::kReady);
}

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
