// The compiled form of a program, whichever kind that is: absent, then being compiled, then ready
// or failed. One thread compiles, the one whose claim() succeeds; the others go on without it or
// wait. That thread writes everything else here, before the state says so, and nobody does again.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "csrc/pjrt/executable.h"

namespace torch_tpu::trace {

class Code {
 public:
  enum class State : uint8_t { kAbsent, kCompiling, kReady, kFailed };
  enum class Origin : uint8_t { kCompiled, kDisk, kPack };

  State state() const noexcept { return state_.load(std::memory_order_acquire); }
  bool ready() const noexcept { return state() == State::kReady; }

  // From absent to compiling: true for one caller, who then calls one of the next three.
  bool claim() noexcept;
  void publish(pjrt::LoadedExecutable executable, Origin origin, double compile_seconds);
  void fail(std::string why) noexcept;
  // Back to absent: somebody may try again.
  void abandon() noexcept;
  // While another thread compiles.
  void wait() const;

  // Once it is ready.
  const pjrt::LoadedExecutable& executable() const noexcept { return executable_; }
  Origin origin() const noexcept { return origin_; }
  double compile_seconds() const noexcept { return compile_seconds_; }  // whoever compiled it
  int64_t temp_bytes() const noexcept { return temp_bytes_; }  // of a run, beside its results
  // Once it has failed.
  const std::string& failure() const noexcept { return failure_; }

 private:
  void enter(State state) noexcept;

  pjrt::LoadedExecutable executable_;
  std::string failure_;
  double compile_seconds_ = 0;
  int64_t temp_bytes_ = 0;
  Origin origin_ = Origin::kCompiled;
  std::atomic<State> state_{State::kAbsent};
};

}  // namespace torch_tpu::trace
