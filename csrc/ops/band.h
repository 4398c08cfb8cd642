// Linear maps along one dimension in which every output sees a run of neighbouring inputs:
// interpolation, averaging over uneven windows, and the transposes of these (their gradients).
#pragma once

#include <vector>

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

struct Band {
  struct Row {
    int64_t start = 0;
    std::vector<double> weights;  // of inputs start, start + 1, ...
  };
  int64_t in = 0;
  std::vector<Row> rows;  // one per output

  int64_t out() const { return static_cast<int64_t>(rows.size()); }
};

// Rows and columns exchanged.
Band transpose(const Band& band);

// Adds `weight` of input `index` (clamped to the range) to a row, which must stay contiguous.
void add_weight(Band& band, size_t row, int64_t index, double weight);

// Replaces dimension `dim` of x (band.in) by the outputs, in the dtype of x. Copies, repeats,
// strided picks and even blocks need no gather.
Value apply(const Band& band, const Value& x, int64_t dim);

// Each element of dimension `dim` `times` times in a row.
Value repeat_elements(const Value& x, int64_t dim, int64_t times);

// Averages over windows [floor(i * in / out), ceil((i + 1) * in / out)).
Band adaptive_average(int64_t in, int64_t out);

}  // namespace torch_tpu::ops
