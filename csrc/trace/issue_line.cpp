#include "csrc/trace/issue_line.h"

namespace torch_tpu::trace {
namespace {

LineHooks line_hooks;

}  // namespace

void set_line_hooks(LineHooks hooks) { line_hooks = hooks; }

IssueLine issue_line() noexcept {
  return line_hooks.capture == nullptr ? IssueLine{} : line_hooks.capture();
}

std::string describe(IssueLine line) {
  if (line.code == nullptr || line_hooks.describe == nullptr) return "";
  return line_hooks.describe(line);
}

std::string python_location() {
  return line_hooks.current == nullptr ? std::string() : line_hooks.current();
}

}  // namespace torch_tpu::trace
