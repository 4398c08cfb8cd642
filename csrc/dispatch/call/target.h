// Whom ops called now are lowered for: what the running platform's compiler needs, and the settings
// at the time of the call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "csrc/ops/target.h"
#include "csrc/pjrt/plugin.h"

namespace torch_tpu::dispatch {

ops::Target current_target();

// While one is alive, calls of this thread are lowered for that platform's compiler instead of the
// one that is loaded: for modules that will run elsewhere.
class PlatformScope {
 public:
  explicit PlatformScope(pjrt::PlatformKind kind);
  ~PlatformScope();
  PlatformScope(const PlatformScope&) = delete;
  PlatformScope& operator=(const PlatformScope&) = delete;

 private:
  std::optional<pjrt::PlatformKind> previous_;
};

// For tests: the form attention takes, with blocks of this side ("auto" and 0: by the platform and
// the shapes). Process-wide.
void set_attention_form(const std::string& form, int64_t block);
// What keys must hold of it; below 2^24, 0 for "auto".
uint64_t attention_word() noexcept;

}  // namespace torch_tpu::dispatch
