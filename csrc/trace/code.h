// The compiled form of a program, whichever kind that is: absent, then being compiled, then ready
// or failed. One thread compiles, the one whose claim() succeeds; the others go on without it or
// wait. That thread writes everything else here, before the state says so.
//
// Code that was compiled quickly, to have it soon, may be replaced once by better code, while
// others run it: the thread whose claim_better() succeeds does that. The quick code stays until the
// end, since a run may be under way in it.
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
  void publish(pjrt::LoadedExecutable executable, Origin origin, double compile_seconds,
               bool quick = false);
  void fail(std::string why) noexcept;
  // Back to absent: somebody may try again.
  void abandon() noexcept;
  // While another thread compiles.
  void wait() const;

  // It runs, and better code may be had.
  bool quick() const noexcept {
    return quality_.load(std::memory_order_acquire) == Quality::kQuick;
  }
  // True for one caller, who then calls one of the next three.
  bool claim_better() noexcept;
  void improve(pjrt::LoadedExecutable executable, double compile_seconds);
  void leave_quick() noexcept;  // there is none; nobody asks again
  void stay_quick() noexcept;   // not now

  // Once it is ready.
  const pjrt::LoadedExecutable& executable() const noexcept {
    return *current_.load(std::memory_order_acquire);
  }
  Origin origin() const noexcept { return origin_; }
  // Whoever compiled it.
  double compile_seconds() const noexcept {
    return compile_seconds_.load(std::memory_order_relaxed);
  }
  // Of a run, beside its results.
  int64_t temp_bytes() const noexcept { return temp_bytes_.load(std::memory_order_relaxed); }
  // Once it has failed.
  const std::string& failure() const noexcept { return failure_; }

 private:
  void enter(State state) noexcept;

  enum class Quality : uint8_t { kBest, kQuick, kImproving };

  pjrt::LoadedExecutable first_;
  pjrt::LoadedExecutable better_;  // of one that was quick
  std::atomic<const pjrt::LoadedExecutable*> current_{&first_};
  std::string failure_;
  std::atomic<double> compile_seconds_{0};
  std::atomic<int64_t> temp_bytes_{0};
  Origin origin_ = Origin::kCompiled;
  std::atomic<Quality> quality_{Quality::kBest};
  std::atomic<State> state_{State::kAbsent};
};

}  // namespace torch_tpu::trace
