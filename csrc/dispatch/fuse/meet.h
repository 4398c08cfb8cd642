// Which program a piece of the trace has, and when that is compiled.
#pragma once

#include "csrc/base/env.h"
#include "csrc/trace/fused.h"

namespace torch_tpu::dispatch {

// What is met: ops over lists of tensors in a row, as an optimizer issues them (a chain), a piece
// with such a chain in it, or any other.
enum class Part : uint8_t { kWhole, kWithChain, kChain };

// The program of this signature, compiled by now or not.
trace::FusedPtr meet(const trace::Segment& segment, const trace::Signature& signature,
                     base::CompileWhen when, Part part);

}  // namespace torch_tpu::dispatch
