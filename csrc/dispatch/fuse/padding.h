// Values with more room than they need: what bounded programs of Fused Eager take and give. Between
// two such programs a value stays as it is; for all others its elements are copied together.
#pragma once

#include "csrc/trace/value.h"

namespace torch_tpu::dispatch {

// The value with a buffer of those sizes, kept with it. By way of the host where it is not there
// already, so that no size compiles anything.
const trace::ValuePtr& padded_to(trace::DeviceValue& value, trace::ShapeRef sizes);

// Makes values of bounded programs readable by all others. Called once, at import.
void register_padding();

}  // namespace torch_tpu::dispatch
