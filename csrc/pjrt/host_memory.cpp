#include "csrc/pjrt/host_memory.h"

#include <cstdlib>
#include <string_view>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace torch_tpu::pjrt {
namespace {

[[maybe_unused]] bool tuned_by_user() {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr &&
         std::string_view(tunables).find("glibc.malloc") != std::string_view::npos;
}

}  // namespace

void keep_freed_host_memory() {
#if defined(__GLIBC__)
  if (tuned_by_user()) return;
  constexpr int kLargest = 32 << 20;  // that glibc takes; larger pieces are mapped one by one
  constexpr int kKept = 1 << 30;      // at the top of each of malloc's heaps
  mallopt(M_MMAP_THRESHOLD, kLargest);
  mallopt(M_TRIM_THRESHOLD, kKept);
#endif
}

void release_freed_host_memory() noexcept {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace torch_tpu::pjrt
