#include "csrc/dispatch/change_mode.h"

#include "csrc/base/fork.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/fuse/pending.h"

namespace torch_tpu::dispatch {

void change_mode(base::Mode next) {
  if (mode() == base::Mode::kFused && next != base::Mode::kFused && !base::in_bad_fork()) {
    launch_all(Cut::kModeChange);
  }
  note_mode(next);
}

}  // namespace torch_tpu::dispatch
