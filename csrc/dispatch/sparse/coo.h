// Helpers of the sparse kernels: positions of elements as single numbers, elements of equal
// position brought together, all on the device and without reading a size unless said.
#pragma once

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>

namespace torch_tpu::dispatch::sparse {

inline at::SparseTensorImpl* impl_of(const at::Tensor& t) {
  return static_cast<at::SparseTensorImpl*>(t.unsafeGetTensorImpl());
}

// Each column of `indices` as its row-major position in `sizes`; all zeros where there are no rows.
at::Tensor flatten(const at::Tensor& indices, at::IntArrayRef sizes);

// A tensor like `like` (options, dims) with these indices and values.
at::Tensor make_coo(const at::Tensor& like, at::IntArrayRef sizes, const at::Tensor& indices,
                    const at::Tensor& values, bool coalesced);

// Puts indices and values into `out`, whatever it was before.
void put(const at::Tensor& out, at::IntArrayRef sizes, int64_t dense_dim, const at::Tensor& indices,
         const at::Tensor& values, bool coalesced);

// `values` added into rows `row` of zeros of `rows` rows; also where they are bool.
at::Tensor sum_rows(const at::Tensor& values, const at::Tensor& row, int64_t rows);

// For each element the place of the first of the elements with the same key. Elements that share a
// place are a group; places are below the number of elements.
at::Tensor group_places(const at::Tensor& key);

// Where each key stands among `sorted`, and whether it does.
struct Found {
  at::Tensor place, hit;
};
Found find(const at::Tensor& sorted, const at::Tensor& key);

// `mask` over the first dimension of `like`, to broadcast against it.
at::Tensor over_rows(const at::Tensor& mask, const at::Tensor& like);

at::Tensor coalesced(const at::Tensor& self);

// alpha * (sparse @ dense), for a COO matrix and a strided one; a new tensor.
at::Tensor product(const at::Tensor& sparse, const at::Tensor& dense);
// The same of rows, columns and values.
at::Tensor product(const at::Tensor& rows, const at::Tensor& columns, const at::Tensor& values,
                   const at::Tensor& dense, int64_t height);

// beta * self + alpha * product, where self does not count if beta is 0.
at::Tensor blend(const at::Tensor& self, const at::Tensor& product, const at::Scalar& beta,
                 const at::Scalar& alpha);

// Row numbers of the elements of compressed indices [..., n + 1], batches kept.
at::Tensor expand_compressed(const at::Tensor& compressed, int64_t count);

}  // namespace torch_tpu::dispatch::sparse
