// Products of COO matrices: an element times a row, rows summed. Only a product of two sparse
// matrices reads a size: how many terms it has.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/library.h>

#include "csrc/dispatch/sparse/coo.h"

namespace torch_tpu::dispatch::sparse {
namespace {

void check_addmm(const at::Tensor& self, const at::Tensor& sparse, const at::Tensor& dense,
                 const at::Tensor& out) {
  for (const auto& [name, t] :
       {std::pair{"'t'", &self}, {"'out'", &out}, {"'mat1'", &sparse}, {"'mat2'", &dense}}) {
    TORCH_CHECK(t->device().type() == at::kPrivateUse1,
                "Expected all tensors to be on the same device. addmm: expected ", name,
                " to be a tpu tensor, but got tensor on ", t->device());
  }
  TORCH_CHECK(out.layout() == at::kStrided,
              "addmm_sparse_dense: expected strided result tensor, got tensor with layout ",
              out.layout());
  TORCH_CHECK(self.layout() == at::kStrided,
              "addmm_sparse_dense: expected 't' to have strided layout, got tensor with layout ",
              self.layout());
  TORCH_CHECK(sparse.layout() == at::kSparse && dense.layout() == at::kStrided,
              "addmm_sparse_dense: expected either 'mat1' to have sparse layout and 'mat2' to have "
              "strided layout, got 'mat1' with layout ",
              sparse.layout(), " and 'mat2' with layout ", dense.layout());
  TORCH_CHECK(sparse.sparse_dim() == 2, "addmm: matrices expected, got ", sparse.sparse_dim(),
              "D tensor");
  TORCH_CHECK(sparse.dense_dim() == 0, "addmm: scalar values expected, got ", sparse.dense_dim(),
              "D values");
  TORCH_CHECK(dense.dim() == 2, "addmm: matrices expected, got ", dense.dim(), "D tensor");
  TORCH_CHECK(dense.size(0) == sparse.size(1), "addmm: Argument #3 (dense): Expected dim 0 size ",
              sparse.size(1), ", got ", dense.size(0));
  TORCH_CHECK(self.size(0) == sparse.size(0), "addmm: Argument #1 (t): Expected dim 0 size ",
              sparse.size(0), ", got ", self.size(0));
  TORCH_CHECK(self.size(1) == dense.size(1), "addmm: Argument #1 (t): Expected dim 1 size ",
              dense.size(1), ", got ", self.size(1));
}

at::Tensor& addmm_whole_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                            const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  check_addmm(self, mat1, mat2, out);
  const at::Tensor result = blend(self, product(mat1, mat2), beta, alpha);
  out.resize_(result.sizes());
  return out.copy_(result);
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                      const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  const auto wide = at::expand_size(self, {mat1.size(0), mat2.size(1)}, "addmm_out");
  return addmm_whole_out(*wide, mat1, mat2, beta, alpha, out);
}

at::Tensor addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  at::Tensor out = at::empty({0}, self.options());
  return addmm_out(self, mat1, mat2, beta, alpha, out);
}

at::Tensor& addmm_(at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                   const at::Scalar& beta, const at::Scalar& alpha) {
  return addmm_whole_out(self, mat1, mat2, beta, alpha, self);
}

at::Tensor batched_product(const at::Tensor& self, const at::Tensor& mat2) {
  TORCH_CHECK(!mat2.is_sparse(), "bmm_sparse: Tensor 'mat2' must be dense");
  TORCH_CHECK(self.is_sparse(), "bmm_sparse: Tensor 'self' must be sparse");
  TORCH_CHECK(self.dense_dim() == 0, "bmm_sparse: Tensor 'self' must have 0 dense dims, but has ",
              self.dense_dim());
  TORCH_CHECK(self.sparse_dim() == 3, "bmm_sparse: Tensor 'self' must have 3 sparse dims, but has ",
              self.sparse_dim());
  TORCH_CHECK(mat2.dim() == 3, "bmm_sparse: Tensor 'mat2' must have 3 dims, but has ", mat2.dim());
  TORCH_CHECK(self.size(0) == mat2.size(0),
              "bmm_sparse: 'self.size(0)' and 'mat2.size(0)' must match");
  TORCH_CHECK(self.size(2) == mat2.size(1),
              "bmm_sparse: 'self.size(2)' and 'mat2.size(1)' must match");
  // The matrices one below the other.
  const at::Tensor indices = self._indices(), batch = indices.select(0, 0);
  return product(batch.mul(self.size(1)).add(indices.select(0, 1)),
                 batch.mul(self.size(2)).add(indices.select(0, 2)), self._values(),
                 mat2.flatten(0, 1), self.size(0) * self.size(1))
      .view({self.size(0), self.size(1), mat2.size(2)});
}

at::Tensor& bmm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  const at::Tensor result = batched_product(self, mat2);
  out.resize_(result.sizes());
  return out.copy_(result);
}

// Each element of the first with each element of the row of the second that it meets.
at::Tensor sparse_sparse_matmul(const at::Tensor& mat1, const at::Tensor& mat2) {
  TORCH_INTERNAL_ASSERT(mat1.is_sparse() && mat2.is_sparse());
  TORCH_CHECK(mat1.dim() == 2 && mat2.dim() == 2,
              "sparse_sparse_matmul: expected 2D tensors, but got ", mat1.dim(), "D and ",
              mat2.dim(), "D");
  TORCH_CHECK(mat1.dense_dim() == 0, "sparse_sparse_matmul_cpu: scalar values expected, got ",
              mat1.dense_dim(), "D values");
  TORCH_CHECK(mat2.dense_dim() == 0, "sparse_sparse_matmul_cpu: scalar values expected, got ",
              mat2.dense_dim(), "D values");
  TORCH_CHECK(mat1.size(1) == mat2.size(0), "mat1 and mat2 shapes cannot be multiplied (",
              mat1.size(0), "x", mat1.size(1), " and ", mat2.size(0), "x", mat2.size(1), ")");
  TORCH_CHECK(mat1.scalar_type() == mat2.scalar_type(), "mat1 dtype ", mat1.scalar_type(),
              " does not match mat2 dtype ", mat2.scalar_type());
  const std::vector<int64_t> sizes{mat1.size(0), mat2.size(1)};
  const at::Tensor a = mat1.coalesce(), b = mat2.coalesce();
  const at::Tensor columns = a._indices().select(0, 1),
                   rows = b._indices().select(0, 0).contiguous();
  const at::Tensor low = at::searchsorted(rows, columns);
  const at::Tensor count =
      at::searchsorted(rows, columns, /*out_int32=*/false, /*right=*/true) - low;
  const at::Tensor of_a = at::repeat_interleave(count);  // read: how many terms there are
  if (of_a.size(0) == 0) {
    return make_coo(mat1, sizes, at::empty({2, 0}, a._indices().options()),
                    at::empty({0}, a._values().options()), true);
  }
  // The how-manieth of its element of `a` each term is.
  const at::Tensor rank =
      at::arange(of_a.size(0), of_a.options()) - (count.cumsum(0) - count).index_select(0, of_a);
  const at::Tensor of_b = low.index_select(0, of_a) + rank;
  const at::ScalarType type = mat1.scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const at::ScalarType wide = half ? at::kFloat : type;
  const at::Tensor terms =
      a._values().to(wide).index_select(0, of_a) * b._values().to(wide).index_select(0, of_b);
  const at::Tensor where = at::stack({a._indices().select(0, 0).index_select(0, of_a),
                                      b._indices().select(0, 1).index_select(0, of_b)});
  return coalesced(make_coo(mat1, sizes, where, terms, false)).to(type);
}

void check_matrices(const char* op, const char* at, const at::Tensor& sparse,
                    const at::Tensor& dense) {
  TORCH_CHECK(sparse.sparse_dim() == 2, op, ": Argument #2: matrices expected, got ",
              sparse.sparse_dim(), "D tensor");
  TORCH_CHECK(sparse.dense_dim() == 0, op, ": Argument #2: scalar values expected, got ",
              sparse.dense_dim(), "D values");
  TORCH_CHECK(dense.dim() == 2, op, ": Argument ", at, ": matrices expected, got ", dense.dim(),
              "D tensor");
  TORCH_CHECK(dense.size(0) == sparse.size(1), op, ": Argument #3: Expected dim 0 size ",
              sparse.size(1), ", got ", dense.size(0));
}

// sparse @ dense, only the rows that are not empty: their numbers, and what is in them.
std::pair<at::Tensor, at::Tensor> rows_of_product(const at::Tensor& sparse,
                                                  const at::Tensor& dense) {
  const at::Tensor indices = sparse._indices();
  const auto [rows, place, counts] =
      at::_unique2(indices.select(0, 0), /*sorted=*/true, /*return_inverse=*/true);
  return {rows, product(place, indices.select(0, 1), sparse._values(), dense, rows.size(0))};
}

at::Tensor& hspmm_out(const at::Tensor& sparse, const at::Tensor& dense, at::Tensor& out) {
  check_matrices("hspmm", "#3", sparse, dense);
  const std::vector<int64_t> sizes{sparse.size(0), dense.size(1)};
  if (sparse._nnz() == 0) {
    impl_of(out)->raw_resize_(1, 1, sizes);
    return out.zero_();
  }
  const auto [rows, values] = rows_of_product(sparse, dense);
  put(out, sizes, 1, rows.unsqueeze(0), values, /*coalesced=*/true);
  return out;
}

at::Tensor hspmm(const at::Tensor& sparse, const at::Tensor& dense) {
  at::Tensor out = at::empty({0}, sparse.options());
  return hspmm_out(sparse, dense, out);
}

at::Tensor& sspaddmm_out(const at::Tensor& self, const at::Tensor& sparse, const at::Tensor& dense,
                         const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  check_matrices("sspaddmm", "#2", sparse, dense);
  TORCH_CHECK(self.size(0) == sparse.size(0), "sspaddmm: Argument #1: Expected dim 0 size ",
              sparse.size(0), ", got ", self.size(0));
  TORCH_CHECK(self.size(1) == dense.size(1), "sspaddmm: Argument #1: Expected dim 1 size ",
              dense.size(1), ", got ", self.size(1));
  at::Tensor indices = self._indices(), values = self._values().mul(beta);
  if (sparse._nnz() > 0) {
    const auto [rows, part] = rows_of_product(sparse, dense);
    const at::Tensor columns = at::arange(dense.size(1), rows.options());
    const at::Tensor where = at::stack({rows.unsqueeze(1).expand(part.sizes()).flatten(),
                                        columns.unsqueeze(0).expand(part.sizes()).flatten()});
    indices = at::cat({indices, where}, 1);
    values = at::cat({values, part.flatten().mul(alpha)});
  }
  put(out, {sparse.size(0), dense.size(1)}, 0, indices.clone(), values, /*coalesced=*/false);
  return out;
}

at::Tensor& sspaddmm_only_sparse(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const at::Scalar&, const at::Scalar&, at::Tensor& out) {
  TORCH_CHECK(false, "tensor.sspaddmm(...) can only be called on sparse tensors");
  return out;
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("addmm", TORCH_FN(addmm));
  m.impl("addmm.out", TORCH_FN(addmm_out));
  m.impl("addmm_", TORCH_FN(addmm_));
  m.impl("bmm", TORCH_FN(batched_product));
  m.impl("bmm.out", TORCH_FN(bmm_out));
  m.impl("_sparse_sparse_matmul", TORCH_FN(sparse_sparse_matmul));
  m.impl("hspmm", TORCH_FN(hspmm));
  m.impl("hspmm.out", TORCH_FN(hspmm_out));
  m.impl("sspaddmm.out", TORCH_FN(sspaddmm_out));
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("sspaddmm.out", TORCH_FN(sspaddmm_only_sparse)); }

}  // namespace
}  // namespace torch_tpu::dispatch::sparse
