// What a call of a PJRT C function needs: its argument struct, the check of its
// error, and whether the plugin has it at all. The call itself is in call.h.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "csrc/pjrt/error.h"
#include "pjrt_c_api.h"

namespace torch_tpu::pjrt {

// A zeroed argument struct with struct_size set; the only place that sets it.
// Zeroing includes the padding: a newer plugin may have put a field there, and
// every optional PJRT field reads zero as "not given".
template <class Args>
Args make_args() noexcept {
  Args args;
  std::memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  return args;
}

// Throws Error for a non-null `error`, which is always freed.
[[noreturn]] void throw_error(const PJRT_Api* api, PJRT_Error* error, const char* function);
inline void check(const PJRT_Api* api, PJRT_Error* error, const char* function) {
  if (error != nullptr) [[unlikely]]
    throw_error(api, error, function);
}

// For destructors and callbacks: frees the error, tells nobody.
void discard(const PJRT_Api* api, PJRT_Error* error) noexcept;

// Takes ownership of a non-null `error` and returns it as an Error.
Error take_error(const PJRT_Api* api, PJRT_Error* error, const char* function);

// "0.81"
std::string api_version_string(const PJRT_Api* api);

[[noreturn]] void throw_missing_function(const PJRT_Api* api, const char* function);

// Whether the plugin has the function: its table reaches that far (it may have
// been built against an older header) and the entry is set.
template <class Function>
bool has_function(const PJRT_Api* api, Function* PJRT_Api::* member) noexcept {
  const auto* entry = &(api->*member);
  const auto end = reinterpret_cast<const char*>(entry + 1) - reinterpret_cast<const char*>(api);
  return static_cast<size_t>(end) <= api->struct_size && *entry != nullptr;
}

}  // namespace torch_tpu::pjrt

#define TORCH_TPU_PJRT_HAS(api, function) \
  ::torch_tpu::pjrt::has_function((api), &PJRT_Api::function)
