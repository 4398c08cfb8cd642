#include "csrc/dispatch/change_mode.h"

#include "csrc/base/fork.h"
#include "csrc/dispatch/call/compiler_options.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/fuse/pending.h"

namespace torch_tpu::dispatch {

void change_mode(base::Mode next) {
  if (mode() == base::Mode::kFused && next != base::Mode::kFused && !base::in_bad_fork()) {
    launch_all(Cut::kModeChange);
  }
  note_mode(next);
}

void change_compiler_options(const pjrt::OptionOverrides& options) {
  if (mode() == base::Mode::kFused && !base::in_bad_fork()) {
    try {
      launch_all(Cut::kModeChange);
    } catch (...) {  // of a call before: the end of a block sets them back even so
      note_compiler_options(options);
      throw;
    }
  }
  note_compiler_options(options);
}

}  // namespace torch_tpu::dispatch
