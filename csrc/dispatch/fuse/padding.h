// Values with more room than they need: what bounded programs of Fused Eager take and give. Between
// two such programs a value stays as it is; for all others its elements are copied together.
#pragma once

#include "csrc/trace/value.h"

namespace torch_tpu::dispatch {

// The value with a buffer of those sizes, kept with it. By way of the host where it is not there
// already, so that no size compiles anything.
const trace::ValuePtr& padded_to(trace::DeviceValue& value, trace::ShapeRef sizes);

// Gives a value of a bounded program memory of its own, for whoever else needs its elements.
void compact(trace::DeviceValue& value);

}  // namespace torch_tpu::dispatch
