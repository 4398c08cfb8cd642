#include "csrc/dispatch/run/counted.h"

#include <bit>

#include <ATen/MemoryOverlap.h>

#include "csrc/base/journal.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/program/infer.h"
#include "csrc/dispatch/report/sync_debug.h"
#include "csrc/dispatch/run/copy_out.h"
#include "csrc/pjrt/read.h"

namespace torch_tpu::dispatch {
namespace {

trace::Geometry geometry_of(const trace::Extent& extent, int64_t count) {
  trace::Geometry out;
  out.sizes = extent.sizes;
  for (int64_t& size : out.sizes) {
    if (size < 0) size = count;
  }
  out.strides.resize(out.sizes.size());
  bool row_major = true;
  for (size_t i = 0; i < extent.order.size(); ++i) {
    row_major &= extent.order[i] == static_cast<int64_t>(i);
  }
  if (row_major) {
    out.strides = trace::contiguous_strides(out.sizes);
    return out;
  }
  int64_t step = 1;
  for (size_t i = extent.order.size(); i-- > 0;) {
    const auto dim = static_cast<size_t>(extent.order[i]);
    out.strides[dim] = step;
    step *= out.sizes[dim];
  }
  return out;
}

// Below this a buffer is not worth a program that cuts it.
constexpr int64_t kSmallBytes = 64 << 10;

// The first `needed` elements of `value`, and perhaps some more.
trace::ValuePtr cut(trace::ValuePtr value, int64_t needed) {
  const int64_t all = trace::numel(value->dims());
  if (value->bytes() <= kSmallBytes || all < 4 * needed) return value;
  const int64_t per_row = all / value->dims()[0];
  const auto rows = static_cast<uint64_t>((needed + per_row - 1) / per_row);
  trace::Shape sizes(value->dims().begin(), value->dims().end());
  sizes[0] = static_cast<int64_t>(std::bit_ceil(rows));
  const trace::Shape strides = trace::contiguous_strides(sizes);
  const c10::ScalarType dtype = ops::to_scalar_type(value->dtype());
  const int device = value->device();
  const at::Tensor from =
      device::make_prefix_tensor(sizes, strides, dtype, device, std::move(value));
  c10::Stack stack{device::make_tensor(sizes, strides, dtype, device), from, false};
  run_op(find_op("aten::copy_"), &stack);
  return device::cell_of(*stack[0].toTensor().unsafeGetTensorImpl())->load();
}

}  // namespace

Counts read_counts(const pjrt::Buffer& buffer, int count) {
  note_sync("a result whose size depends on data");
  Counts counts(static_cast<size_t>(count));
  const size_t bytes = counts.size() * sizeof(int64_t);
  const base::journal::Span span(base::journal::Kind::kHostRead, "size of a result", 0, 0,
                                 static_cast<int64_t>(bytes));
  pjrt::read_dense(buffer, counts.data(), bytes);
  return counts;
}

at::Tensor counted_tensor(const trace::Extent& extent, int64_t count, c10::ScalarType dtype,
                          trace::ValuePtr value) {
  const int device = value->device();
  const trace::Geometry view = geometry_of(extent, count);
  const int64_t needed = trace::numel(view.sizes);
  if (needed > 0) value = cut(std::move(value), needed);
  return device::make_prefix_tensor(view.sizes, view.strides, dtype, device, std::move(value));
}

void run_and_copy_out(const Op& op, c10::Stack* stack) {
  const Op& functional = find_op("aten::" + std::string(op.entry->name));
  const size_t first = stack->size() - op.args.size();
  c10::Stack inner;
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < op.args.size(); ++i) {
    const c10::IValue& value = (*stack)[first + i];
    if (op.args[i].written) {
      outs.push_back(value.toTensor());
    } else {
      inner.push_back(value);
    }
  }
  for (const at::Tensor& out : outs) {
    TORCH_CHECK(out.device() == inner[0].toTensor().device(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                inner[0].toTensor().device(), " and ", out.device(), "!");
  }
  if (op.entry->overlap == ops::Overlap::kNone) {
    for (const at::Tensor& out : outs) {
      at::assert_no_internal_overlap(out);
      for (const c10::IValue& value : inner) {
        if (value.isTensor() && value.toTensor().defined()) {
          at::assert_no_overlap(out, value.toTensor());
        }
      }
    }
  }
  run_op(functional, &inner);
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::Tensor& result = inner[i].toTensor();
    if (outs[i].scalar_type() != result.scalar_type()) {
      raise_cpu_error(Frame(op, stack->data() + first));  // CPU's own words
      TORCH_CHECK(false, op.name, ": expected out tensor to have dtype ", result.scalar_type(),
                  ", but got ", outs[i].scalar_type(), " instead");
    }
    copy_out(outs[i], result, /*may_resize=*/true);
  }
  stack->erase(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  for (at::Tensor& out : outs) stack->emplace_back(std::move(out));
}

}  // namespace torch_tpu::dispatch
