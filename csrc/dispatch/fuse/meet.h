// Which program a piece of the trace has, and when that is compiled.
#pragma once

#include "csrc/base/env.h"
#include "csrc/trace/fused.h"

namespace torch_tpu::dispatch {

// The program of this signature, compiled by now or not.
trace::FusedPtr meet(const trace::Segment& segment, const trace::Signature& signature,
                     base::CompileWhen when);

}  // namespace torch_tpu::dispatch
