// How every PJRT C function is called: the error check, and the guards against
// functions a plugin is too old to have and against forked children, in which a
// plugin that was started cannot be called.
#pragma once

#include "csrc/base/fork.h"
#include "csrc/pjrt/api.h"

namespace torch_tpu::pjrt {

template <class Args>
void call(const PJRT_Api* api, PJRT_Error* (*PJRT_Api::*member)(Args*), const char* function,
          Args* args) {
  if (base::in_bad_fork()) [[unlikely]]
    base::throw_bad_fork();
  if (!has_function(api, member)) [[unlikely]]
    throw_missing_function(api, function);
  check(api, (api->*member)(args), function);
}

template <class Args>
void call_noexcept(const PJRT_Api* api, PJRT_Error* (*PJRT_Api::*member)(Args*),
                   Args* args) noexcept {
  if (base::in_bad_fork()) return;  // what it would free is the parent's
  if (has_function(api, member)) discard(api, (api->*member)(args));
}

}  // namespace torch_tpu::pjrt

// Calls api->function(&args) with all checks; throws torch_tpu::pjrt::Error,
// and std::runtime_error in a forked child.
#define TORCH_TPU_PJRT_CALL(api, function, args) \
  ::torch_tpu::pjrt::call((api), &PJRT_Api::function, #function, &(args))
// The same for destructors: never throws, ignores a missing function, and does
// nothing in a forked child.
#define TORCH_TPU_PJRT_CALL_NOEXCEPT(api, function, args) \
  ::torch_tpu::pjrt::call_noexcept((api), &PJRT_Api::function, &(args))
