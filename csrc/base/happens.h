// For ThreadSanitizer: an order between threads that a library not built with it makes, by means it
// does not see (XLA's own locks). What a thread did before happens_before(x) is done for one that
// comes after happens_after(x). Nothing in other builds.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace torch_tpu::base {

#if defined(__SANITIZE_THREAD__)
inline void happens_before(const void* x) noexcept { __tsan_release(const_cast<void*>(x)); }
inline void happens_after(const void* x) noexcept { __tsan_acquire(const_cast<void*>(x)); }
#else
inline void happens_before(const void*) noexcept {}
inline void happens_after(const void*) noexcept {}
#endif

}  // namespace torch_tpu::base
