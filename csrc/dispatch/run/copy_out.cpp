#include "csrc/dispatch/run/copy_out.h"

#include <ATen/native/Resize.h>
#include <c10/core/ScalarType.h>

namespace torch_tpu::dispatch {

void copy_out(const at::Tensor& target, const at::Tensor& result, bool may_resize) {
  TORCH_CHECK(c10::canCast(result.scalar_type(), target.scalar_type()), "result type ",
              result.scalar_type(), " can't be cast to the desired output type ",
              target.scalar_type());
  if (may_resize && at::native::resize_output(target, result.sizes())) {
    target.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
  }
  target.copy_(result);
}

}  // namespace torch_tpu::dispatch
