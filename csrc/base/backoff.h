// Waiting for something short that another thread does: first by turning, then by sleeping, without
// Python's lock. For waits that hardly ever happen, so that nobody has to wake anybody.
#pragma once

#include <chrono>
#include <optional>
#include <thread>

#include "csrc/base/gil.h"

namespace torch_tpu::base {

class Backoff {
 public:
  void pause() {
    constexpr int kTurns = 256;
    if (turns_ < kTurns) {
      ++turns_;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      return;
    }
    if (!released_) released_.emplace();
    std::this_thread::sleep_for(sleep_);
    if (sleep_ < std::chrono::microseconds(200)) sleep_ *= 2;
  }

 private:
  int turns_ = 0;
  std::chrono::microseconds sleep_{5};
  std::optional<WithoutGil> released_;
};

}  // namespace torch_tpu::base
