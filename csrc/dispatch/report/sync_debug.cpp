#include "csrc/dispatch/report/sync_debug.h"

#include <atomic>

#include <c10/util/Exception.h>

#include "csrc/trace/issue_line.h"

namespace torch_tpu::dispatch {
namespace {

std::atomic<SyncDebug> current{SyncDebug::kSilent};

void tell(const char* what) {
  const std::string where = trace::python_location();
  const std::string at = where.empty() ? "" : " at " + where;
  if (sync_debug() == SyncDebug::kError) {
    TORCH_CHECK(false, "called a synchronizing TPU operation: ", what, at);
  }
  TORCH_WARN("called a synchronizing TPU operation: ", what, at);
}

}  // namespace

SyncDebug sync_debug() noexcept { return current.load(std::memory_order_relaxed); }

void set_sync_debug(SyncDebug what) noexcept { current.store(what); }

void note_sync(const char* what) {
  if (sync_debug() != SyncDebug::kSilent) [[unlikely]]
    tell(what);
}

}  // namespace torch_tpu::dispatch
