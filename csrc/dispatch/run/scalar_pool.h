// Small host arrays on the device: packed runtime scalars. Most calls repeat the same few numbers,
// so uploads are kept in a small table and a repeated pack costs a lookup.
#pragma once

#include <cstddef>

#include "csrc/trace/value.h"

namespace torch_tpu::dispatch {

// A 1-D array of `count` elements. Thread-safe.
trace::ValuePtr upload_pack(stablehlo::DType dtype, const void* data, size_t count, int device);

// The same without keeping it, for values that never repeat (generator state).
trace::ValuePtr upload_once(stablehlo::DType dtype, const void* data, size_t count, int device);

void clear_scalar_pool();

}  // namespace torch_tpu::dispatch
