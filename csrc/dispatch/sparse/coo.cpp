#include "csrc/dispatch/sparse/coo.h"

#include <ATen/ATen.h>
#include <ATen/native/DispatchStub.h>
#include <torch/library.h>

// PyTorch has this as a stub per device, for its checks of indices and its conversions.
namespace at::native {
using flatten_indices_fn = Tensor (*)(const Tensor& indices, IntArrayRef size);
DECLARE_DISPATCH(flatten_indices_fn, flatten_indices_stub)
}  // namespace at::native

namespace torch_tpu::dispatch::sparse {

at::Tensor flatten(const at::Tensor& indices, at::IntArrayRef sizes) {
  const int64_t dims = indices.size(0);
  if (dims == 0 || indices.size(1) == 0) {
    return at::zeros({indices.size(1)}, indices.options().dtype(at::kLong));
  }
  at::Tensor key = indices.select(0, 0).to(at::kLong);
  for (int64_t d = 1; d < dims; ++d) key = key.mul(sizes[d]).add(indices.select(0, d));
  return key;
}

at::Tensor make_coo(const at::Tensor& like, at::IntArrayRef sizes, const at::Tensor& indices,
                    const at::Tensor& values, bool coalesced) {
  return at::_sparse_coo_tensor_with_dims_and_tensors(
      indices.size(0), values.dim() - 1, sizes, indices, values,
      like.options().dtype(values.scalar_type()).layout(at::kSparse), coalesced);
}

void put(const at::Tensor& out, at::IntArrayRef sizes, int64_t dense_dim, const at::Tensor& indices,
         const at::Tensor& values, bool coalesced) {
  at::SparseTensorImpl* impl = impl_of(out);
  impl->raw_resize_(indices.size(0), dense_dim, sizes);
  impl->set_indices_and_values_unsafe(indices, values.to(out.scalar_type()));
  impl->set_coalesced(coalesced);
}

at::Tensor sum_rows(const at::Tensor& values, const at::Tensor& row, int64_t rows) {
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] = rows;
  if (values.numel() == 0) return at::zeros(sizes, values.options());
  const at::ScalarType type = values.scalar_type();
  if (type == at::kBool) return sum_rows(values.to(at::kInt), row, rows).ne(0);
  return at::zeros(sizes, values.options()).index_add(0, row, values);
}

at::Tensor group_places(const at::Tensor& key) {
  return at::searchsorted(std::get<0>(key.sort()), key);
}

Found find(const at::Tensor& sorted, const at::Tensor& key) {
  const at::Tensor place = at::searchsorted(sorted, key).clamp_max(sorted.size(0) - 1);
  return {place, sorted.index_select(0, place).eq(key)};
}

at::Tensor over_rows(const at::Tensor& mask, const at::Tensor& like) {
  std::vector<int64_t> sizes(like.dim(), 1);
  sizes[0] = mask.size(0);
  return mask.reshape(sizes);
}

at::Tensor coalesced(const at::Tensor& self) {
  const int64_t count = self._nnz();
  if (count < 2) return self.clone()._coalesced_(true);
  const at::Tensor indices = self._indices(), values = self._values();
  const auto [key, order] = flatten(indices, self.sizes()).sort(std::optional<bool>(true), 0);
  const at::Tensor starts = at::cat({at::ones({1}, key.options().dtype(at::kBool)),
                                     key.narrow(0, 1, count - 1).ne(key.narrow(0, 0, count - 1))});
  const at::Tensor first = starts.nonzero().squeeze(1);  // read: how many there are
  const at::Tensor row = starts.cumsum(0).sub(1);
  return make_coo(self, self.sizes(), indices.index_select(1, order.index_select(0, first)),
                  sum_rows(values.index_select(0, order), row, first.size(0)), true);
}

at::Tensor product(const at::Tensor& rows, const at::Tensor& columns, const at::Tensor& values,
                   const at::Tensor& dense, int64_t height) {
  const at::ScalarType type = dense.scalar_type();
  // Half types are summed in float32.
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const at::ScalarType wide = half ? at::kFloat : type;
  const at::Tensor terms =
      values.to(wide).unsqueeze(-1).mul(dense.index_select(0, columns).to(wide));
  return sum_rows(terms, rows, height).to(type);
}

at::Tensor product(const at::Tensor& sparse, const at::Tensor& dense) {
  const at::Tensor indices = sparse._indices();
  return product(indices.select(0, 0), indices.select(0, 1), sparse._values(), dense,
                 sparse.size(0));
}

at::Tensor blend(const at::Tensor& self, const at::Tensor& product, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  const at::Tensor scaled = alpha.equal(1) ? product : product.mul(alpha);
  if (beta.equal(0)) return scaled;
  return (beta.equal(1) ? self : self.mul(beta)).add(scaled);
}

at::Tensor expand_compressed(const at::Tensor& compressed, int64_t count) {
  std::vector<int64_t> sizes = compressed.sizes().vec();
  sizes.back() = count;
  if (compressed.size(-1) < 2 || count == 0 || compressed.numel() == 0)
    return at::zeros(sizes, compressed.options());
  const at::Tensor places = at::arange(count, compressed.options()).expand(sizes).contiguous();
  return at::searchsorted(compressed.contiguous(), places, /*out_int32=*/false, /*right=*/true)
      .sub(1)
      .to(compressed.scalar_type());
}

namespace {

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) { m.impl("_coalesce", TORCH_FN(coalesced)); }

}  // namespace
}  // namespace torch_tpu::dispatch::sparse

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(flatten_indices_stub, &torch_tpu::dispatch::sparse::flatten)
}  // namespace at::native
