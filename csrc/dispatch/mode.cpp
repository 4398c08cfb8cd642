#include "csrc/dispatch/mode.h"

#include "csrc/base/fork.h"
#include "csrc/dispatch/fused.h"

namespace torch_tpu::dispatch {
namespace {

std::atomic<int>& mode_cell() {
  static std::atomic<int> cell{static_cast<int>(base::env_mode())};
  return cell;
}
std::atomic<bool>& nans_cell() {
  static std::atomic<bool> cell{base::env_debug_nans()};
  return cell;
}
std::atomic<LocationHook> location_hook{nullptr};
IssueLineHooks line_hooks;  // set while the module is imported, before the first op
GilHooks gil_hooks;         // the same

}  // namespace

base::Mode mode() { return static_cast<base::Mode>(mode_cell().load(std::memory_order_relaxed)); }
void set_mode(base::Mode next) {
  if (mode() == base::Mode::kFused && next != base::Mode::kFused && !base::in_bad_fork()) {
    launch_all(Cut::kModeChange);
  }
  mode_cell().store(static_cast<int>(next));
}

bool debug_nans() { return nans_cell().load(std::memory_order_relaxed); }
void set_debug_nans(bool on) { nans_cell().store(on); }

void set_location_hook(LocationHook hook) { location_hook.store(hook); }

std::string python_location() {
  LocationHook hook = location_hook.load();
  return hook == nullptr ? std::string() : hook();
}

void set_issue_line_hooks(IssueLineHooks hooks) { line_hooks = hooks; }

IssueLine issue_line() noexcept {
  return line_hooks.capture == nullptr ? IssueLine{} : line_hooks.capture();
}

std::string describe(IssueLine line) {
  if (line.code == nullptr || line_hooks.describe == nullptr) return "";
  return line_hooks.describe(line);
}

void set_gil_hooks(GilHooks hooks) { gil_hooks = hooks; }

WithoutGil::WithoutGil() {
  if (gil_hooks.release != nullptr) state_ = gil_hooks.release();
}

WithoutGil::~WithoutGil() {
  if (state_ != nullptr) gil_hooks.take(state_);
}

}  // namespace torch_tpu::dispatch
