// Reading and writing a strided view of a base value, as StableHLO. The base is a value whose dims
// and (dense) strides say how it lies in the storage; the view is any (sizes, strides, offset) over
// that storage, perhaps of another dtype.
#pragma once

#include "csrc/stablehlo/builder.h"
#include "csrc/trace/shape.h"

namespace torch_tpu::trace {

// Where a view begins, if that is known only when the program runs: the index of its first element
// along each dimension of the base (s64[]; undefined: 0). The offset of its geometry is 0 then.
struct Place {
  stablehlo::Values starts;  // empty: it is where its geometry says
  bool is_box = true;        // as is_box() said of the place it was called with
  // Of a write whose update is computed from other elements of the base: it must not be done in
  // place (stablehlo::Builder::reads_elsewhere).
  bool apart = false;
};

// slice / transpose / reshape / broadcast where the strides allow it, a gather as the last resort.
stablehlo::Value read_view(const stablehlo::Value& base, ShapeRef base_strides,
                           const Geometry& view, stablehlo::DType dtype, const Place& place = {});

// The base with the view's elements replaced by `update` (of the view's sizes and dtype).
stablehlo::Value write_view(const stablehlo::Value& base, ShapeRef base_strides,
                            const Geometry& view, const stablehlo::Value& update,
                            const Place& place = {});

// `part` put into x at these indices; see Place::apart.
stablehlo::Value update_part(const stablehlo::Value& x, const stablehlo::Value& part,
                             const stablehlo::Values& starts, bool apart);

// Whether a view of a storage of `n` elements is a slice of some reshaped form of it; else its
// elements are gathered.
bool is_box(int64_t n, ShapeRef sizes, ShapeRef strides, int64_t offset);

}  // namespace torch_tpu::trace
