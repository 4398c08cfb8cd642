// Ops whose result may be longer than their inputs, by as much as the data say: bincount and
// repeat_interleave. Their size is computed and read first, rounded up to a power of two for the
// program, and the result is a prefix of what that gives; so there are few programs. And one_hot.
#include <bit>

#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "csrc/base/journal.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/op.h"
#include "csrc/dispatch/report/sync_debug.h"

namespace torch_tpu::dispatch {
namespace {

int64_t padded(int64_t size) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(size, 16))));
}

at::Tensor prefix(const at::Tensor& full, int64_t size) {
  return device::make_prefix_tensor({size}, {1}, full.scalar_type(), full.device().index(),
                                    device::cell_of(*full.unsafeGetTensorImpl())->load());
}

at::Tensor run(const char* name, c10::Stack stack) {
  run_op(find_op(name), &stack);
  return stack[0].toTensor();
}

struct Bounds {
  int64_t low, high;
};

// Waits for numbers that say how large a result will be.
at::Tensor read_sizes(const at::Tensor& numbers) {
  note_sync("a result whose size depends on data");
  const base::journal::Span span(base::journal::Kind::kHostRead, "size of a result", 0, 0,
                                 static_cast<int64_t>(numbers.nbytes()));
  return device::download(numbers);
}

// The smallest and largest element, in one read.
Bounds bounds_of(const at::Tensor& self) {
  const auto [low, high] = at::aminmax(self);
  const at::Tensor read = read_sizes(at::stack({low, high})).to(at::kLong);
  return {read.const_data_ptr<int64_t>()[0], read.const_data_ptr<int64_t>()[1]};
}

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights,
                    int64_t minlength) {
  const c10::ScalarType type = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isIntegralType(type, /*includeBool=*/false),
                              "\"bincount_cpu\" not implemented for '", type, "'");
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  const bool weighted = weights.has_value() && weights->defined();
  if (self.dim() == 1 && self.numel() == 0)
    return at::zeros({minlength}, self.options().dtype(at::kLong));
  const Bounds bounds = self.dim() == 1 ? bounds_of(self) : Bounds{-1, 0};
  TORCH_CHECK(bounds.low >= 0, "bincount only supports 1-d non-negative integral inputs.");
  TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->numel() == self.numel()),
              "weights should be 1-d and have the same length as input");
  const int64_t size = std::max(minlength, bounds.high + 1);
  return prefix(run("aten::bincount", {self, weights, padded(size)}), size);
}

at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  const c10::ScalarType type = repeats.scalar_type();
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK_NOT_IMPLEMENTED(type == at::kLong || type == at::kInt,
                              "\"repeat_interleave_cpu\" not implemented for '", type, "'");
  if (repeats.numel() == 0) return at::empty({0}, repeats.options());
  if (output_size) return run("aten::repeat_interleave.Tensor", {repeats, *output_size});
  const at::Tensor wide = repeats.to(at::kLong);
  const at::Tensor read = read_sizes(at::stack({wide.min(), wide.sum()}));
  TORCH_CHECK(read.const_data_ptr<int64_t>()[0] >= 0, "repeats can not be negative");
  const int64_t size = read.const_data_ptr<int64_t>()[1];
  if (size == 0) return at::empty({0}, repeats.options());
  // One more run takes up the padding.
  const int64_t bound = padded(size);
  const at::Tensor filled = at::constant_pad_nd(repeats, {0, 1}, bound - size);
  return prefix(run("aten::repeat_interleave.Tensor", {filled, bound}), size);
}

// Its size is exact: the classes are the last dimension, so no prefix could stand for it.
at::Tensor one_hot(const at::Tensor& self, int64_t num_classes) {
  TORCH_CHECK(self.scalar_type() == at::kLong,
              "one_hot is only applicable to index tensor of type LongTensor.");
  if (self.numel() == 0) {
    TORCH_CHECK(num_classes > 0, "Can not infer total number of classes from empty tensor.");
  } else if (num_classes == -1) {
    const Bounds bounds = bounds_of(self);
    TORCH_CHECK(bounds.low >= 0, "Class values must be non-negative.");
    num_classes = bounds.high + 1;
  }
  TORCH_CHECK(num_classes > 0, "Class values must be smaller than num_classes.");
  return run("aten::one_hot", {self, num_classes});
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("one_hot", TORCH_FN(one_hot));
  m.impl("bincount", TORCH_FN(bincount));
  m.impl("repeat_interleave.Tensor", TORCH_FN(repeat_interleave));
}

}  // namespace
}  // namespace torch_tpu::dispatch
