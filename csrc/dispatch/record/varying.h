// Recording with dimensions that vary: tensors of the recording have the sizes of the bound, and
// how many elements count comes with the program's numbers (integers in one array, floats in
// another). For the bounded programs of torch.compile; works on the thread's Recorder.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "csrc/stablehlo/builder.h"
#include "csrc/trace/value.h"

namespace torch_tpu::dispatch {

// A sum of the program's numbers and a constant.
struct Extents {
  int64_t constant = 0;
  std::vector<std::pair<int, int64_t>> terms;  // (number, factor)
};

// What is known of one dimension.
struct Varying {
  size_t factors = 0;  // 0: it does not vary; 1: its first elements count; more: of merged ones
  std::vector<int64_t> counts;  // per sample of the numbers: how many count
};

class VaryingScope {
 public:
  // Declares the program's numbers. After the arguments, before the first op.
  VaryingScope(int integers, int floats);

  // The tensor again, where only the first elements of the dimension count.
  at::Tensor vary(const at::Tensor& tensor, int64_t dim, const Extents& size);
  // The tensor again, all of whose elements along the dimension count: the caller knows.
  at::Tensor trust(const at::Tensor& tensor, int64_t dim);
  // Per dimension.
  std::vector<Varying> look(const at::Tensor& tensor,
                            const std::vector<std::vector<int64_t>>& samples);
  // One of the numbers as a 0-d tensor, int64 or float32.
  at::Tensor number(int index);
  at::Tensor float_number(int index);
  // tensor.select(dim, at) and a slice of that length from `at` on; they must count.
  at::Tensor select(const at::Tensor& tensor, int64_t dim, const Extents& at);
  at::Tensor slice(const at::Tensor& tensor, int64_t dim, const Extents& at, int64_t length);
  // The reverse of slice(): zeros of that length with the tensor's elements from `at` on.
  at::Tensor unslice(const at::Tensor& tensor, int64_t dim, const Extents& at, int64_t length);
  // Any reshape: `dims` at the bound, `sizes` are the true ones. Gathers rows.
  at::Tensor reshape(const at::Tensor& tensor, const std::vector<int64_t>& dims,
                     const std::vector<Extents>& sizes);
  // In one dimension: the elements that count one after the other, as a contiguous tensor of the
  // true sizes has them, and anything behind them.
  at::Tensor pack(const at::Tensor& tensor);

 private:
  stablehlo::Size size_of(const Extents& extents) const;
  std::vector<stablehlo::Size> numbers_;
  stablehlo::Values values_;  // s64[], beside numbers_
  stablehlo::Values floats_;  // f32[]
};

// The value of a tensor with more room: `sizes` are at least the tensor's. Its own base value where
// that is one already; else a copy by way of the host, so that no length compiles anything.
trace::ValuePtr padded_value(const at::Tensor& tensor, trace::ShapeRef sizes);
// For tests: the room is filled with NaN and odd numbers, and never shared.
void set_poison(bool on);

}  // namespace torch_tpu::dispatch
