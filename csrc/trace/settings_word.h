// The second word of a call's key: settings outside its arguments. Written by dispatch/call.
#pragma once

#include <cstdint>

namespace torch_tpu::trace {

// From this bit on it has the tag of the compiler options; where that is not 0, two words follow
// that mean the same options in every process.
inline constexpr int kOptionsShift = 48;

}  // namespace torch_tpu::trace
