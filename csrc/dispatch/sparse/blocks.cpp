// Compressed tensors to blocked ones: CSR to BSR, CSC to BSC.
#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/ops/_to_sparse_bsc_native.h>
#include <ATen/ops/_to_sparse_bsr_native.h>
#include <torch/library.h>

#include "csrc/dispatch/sparse/coo.h"

namespace torch_tpu::dispatch::sparse {
namespace {

void check(const char* name, const at::Tensor& self, at::IntArrayRef block, at::Layout to,
           std::optional<int64_t> dense_dim) {
  TORCH_CHECK(at::sparse_csr::numBatchDimensions(self) == 0, name, ": conversion from ",
              self.layout(), " to ", to, " for batched inputs is not supported");
  TORCH_CHECK(block.size() == 2, name, ": blocksize needs to be a tuple of size 2, but got ",
              block.size());
  TORCH_CHECK(block[0] > 0 && block[1] > 0, name, ": blocksize needs to be positive, but got ",
              block);
  TORCH_CHECK(self.size(0) % block[0] == 0 && self.size(1) % block[1] == 0, name,
              ": tensor sparse size (", self.size(0), ",", self.size(1),
              ") must be divisible by given blocksize (", block[0], ",", block[1], ")");
  TORCH_CHECK(!dense_dim, name, ": conversion from ", self.layout(), " to ", to,
              " with dense_dim argument given is not supported");
}

at::Tensor blocked(const at::Tensor& self, at::IntArrayRef block, at::Layout to) {
  const bool by_rows = to == at::kSparseBsr;
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(self);
  const int64_t c = by_rows ? 0 : 1, p = 1 - c;  // which dimension is compressed, which is not
  const int64_t high = self.size(c) / block[c], wide = self.size(p) / block[p];
  at::Tensor along[2];
  along[c] = expand_compressed(compressed, plain.size(-1)).to(at::kLong);
  along[p] = plain.to(at::kLong);
  const at::Tensor key =
      along[c].div(block[c], "floor").mul(wide).add(along[p].div(block[p], "floor"));
  const at::Tensor values = self.values();
  std::vector<int64_t> sizes{0, block[0], block[1]};
  sizes.insert(sizes.end(), values.sizes().begin() + 1, values.sizes().end());
  const auto type = plain.scalar_type();
  if (values.size(0) == 0) {
    return at::_sparse_compressed_tensor_unsafe(
        at::zeros({high + 1}, compressed.options()), at::zeros({0}, plain.options()),
        at::zeros(sizes, values.options()), self.sizes(), self.options().layout(to));
  }
  const auto [keys, place, counts] =
      at::_unique2(key, /*sorted=*/true, /*return_inverse=*/true);  // read: how many blocks
  sizes[0] = keys.size(0);
  const at::Tensor inside =
      along[0].remainder(block[0]).mul(block[1]).add(along[1].remainder(block[1]));
  const int64_t area = block[0] * block[1];
  const at::Tensor filled =
      sum_rows(values, place.mul(area).add(inside), keys.size(0) * area).view(sizes);
  const at::Tensor begins =
      at::searchsorted(keys.div(wide, "floor"), at::arange(high + 1, keys.options()));
  return at::_sparse_compressed_tensor_unsafe(begins.to(type), keys.remainder(wide).to(type),
                                              filled, self.sizes(), self.options().layout(to));
}

at::Tensor to_bsr(const at::Tensor& self, at::IntArrayRef block, std::optional<int64_t> dense_dim) {
  if (self.layout() != at::kSparseCsr)
    return at::native::sparse_compressed_to_sparse_bsr(self, block, dense_dim);
  check("sparse_compressed_to_sparse_bsr", self, block, at::kSparseBsr, dense_dim);
  return blocked(self, block, at::kSparseBsr);
}

at::Tensor to_bsc(const at::Tensor& self, at::IntArrayRef block, std::optional<int64_t> dense_dim) {
  if (self.layout() != at::kSparseCsc)
    return at::native::sparse_compressed_to_sparse_bsc(self, block, dense_dim);
  check("sparse_compressed_to_sparse_bsc", self, block, at::kSparseBsc, dense_dim);
  return blocked(self, block, at::kSparseBsc);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_to_sparse_bsr", TORCH_FN(to_bsr));
  m.impl("_to_sparse_bsc", TORCH_FN(to_bsc));
}

}  // namespace
}  // namespace torch_tpu::dispatch::sparse
