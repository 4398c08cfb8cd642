// Debug Eager: every op is waited for; a failure, a NaN or an Inf is raised at once with the op,
// shapes and simple statistics of the inputs, and the user's Python line.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/run/results.h"

namespace torch_tpu::dispatch {

class DebugCall {
 public:
  // Describes the inputs now: the op may overwrite them.
  explicit DebugCall(const Frame& frame);

  // Runs `body`; an error of the device is rethrown with the description. PyTorch's own errors
  // (c10::Error) pass unchanged.
  void guard(const std::function<void()>& body);
  // Waits for the op's results and, if asked for, looks for NaN and Inf.
  void check(const Frame& frame, const Results& results);

 private:
  std::string describe() const;

  std::string op_;
  int device_;
  bool inputs_finite_ = true;
  std::vector<std::string> inputs_;
};

}  // namespace torch_tpu::dispatch
