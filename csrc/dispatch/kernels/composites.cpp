// Ops that are best said in terms of others, or that answer with a number instead of a tensor.
#include <ATen/core/Tensor.h>
#include <ATen/ops/all.h>
#include <ATen/ops/eq.h>
#include <torch/library.h>

namespace torch_tpu::dispatch {
namespace {

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Cannot compare two tensors on different devices. ",
              "Got: ", self.device(), " and ", other.device());
  if (self.sizes() != other.sizes()) return false;
  if (self.numel() == 0) return true;
  return at::all(at::eq(self, other)).item<bool>();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("equal", TORCH_FN(equal)); }

}  // namespace
}  // namespace torch_tpu::dispatch
