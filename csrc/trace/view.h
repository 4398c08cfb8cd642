// Reading and writing a strided view of a base value, as StableHLO. The base is a value whose dims
// and (dense) strides say how it lies in the storage; the view is any (sizes, strides, offset) over
// that storage, perhaps of another dtype.
#pragma once

#include "csrc/stablehlo/builder.h"
#include "csrc/trace/shape.h"

namespace torch_tpu::trace {

// slice / transpose / reshape / broadcast where the strides allow it, a gather as the last resort.
stablehlo::Value read_view(const stablehlo::Value& base, ShapeRef base_strides,
                           const Geometry& view, stablehlo::DType dtype);

// The base with the view's elements replaced by `update` (of the view's sizes and dtype).
stablehlo::Value write_view(const stablehlo::Value& base, ShapeRef base_strides,
                            const Geometry& view, const stablehlo::Value& update);

}  // namespace torch_tpu::trace
