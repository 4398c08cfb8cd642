// Ops whose results have a size that only the data tell: nonzero, masked_select, unique. Their
// program fills a buffer of the largest size possible and counts; here the counts are read, once a
// call, and the results become tensors over the beginning of their buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/dispatch/call/op.h"
#include "csrc/trace/program.h"
#include "csrc/trace/value.h"

namespace torch_tpu::dispatch {

using Counts = c10::SmallVector<int64_t, 2>;

// Waits for the buffer, s64[count].
Counts read_counts(const pjrt::Buffer& buffer, int count);

// The tensor over the first elements of `value`. No program is compiled for a new count; only when
// most of a large buffer is padding is it cut to the next power of two, so that memory is given
// back at the price of a few programs in all.
at::Tensor counted_tensor(const trace::Extent& extent, int64_t count, c10::ScalarType dtype,
                          trace::ValuePtr value);

// Op::copies_out: the functional op, then resize and copy.
void run_and_copy_out(const Op& op, c10::Stack* stack);

}  // namespace torch_tpu::dispatch
