// Small shapes: inline up to 5 dims (TensorImpl's own limit), no heap on the hot path.
#pragma once

#include <cstdint>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

namespace torch_tpu::trace {

using Shape = c10::SmallVector<int64_t, 5>;
using ShapeRef = c10::ArrayRef<int64_t>;

inline int64_t numel(ShapeRef dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

inline Shape contiguous_strides(ShapeRef dims) {
  Shape strides(dims.size());
  int64_t step = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = step;
    step *= dims[i] > 1 ? dims[i] : 1;
  }
  return strides;
}

// Whether these strides are those; a dim of size 1 may have any.
inline bool is_contiguous(ShapeRef dims, ShapeRef strides) {
  int64_t step = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i] == 1) continue;
    if (strides[i] != step) return false;
    step *= dims[i];
  }
  return true;
}

// Where a tensor's elements lie in its storage.
struct Geometry {
  Shape sizes;
  Shape strides;
  int64_t offset = 0;
};

inline Shape to_shape(ShapeRef values) { return Shape(values.begin(), values.end()); }

}  // namespace torch_tpu::trace
