#include "csrc/dispatch/call/mode.h"

#include <atomic>

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

}  // namespace

base::Mode mode() { return static_cast<base::Mode>(mode_cell().load(std::memory_order_relaxed)); }
void note_mode(base::Mode next) { mode_cell().store(static_cast<int>(next)); }

bool debug_nans() { return nans_cell().load(std::memory_order_relaxed); }
void set_debug_nans(bool on) { nans_cell().store(on); }

}  // namespace torch_tpu::dispatch
