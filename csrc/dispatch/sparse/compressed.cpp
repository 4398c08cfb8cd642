// Sums and products of compressed tensors (CSR, CSC, BSR, BSC), by way of COO or of rows and
// columns.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <torch/library.h>

#include "csrc/dispatch/sparse/coo.h"

namespace torch_tpu::dispatch::sparse {
namespace {

using at::sparse_csr::is_sparse_compressed;

at::Tensor in_layout_of(const at::Tensor& coo, const at::Tensor& like) {
  const at::Layout layout = like.layout();
  if (layout == at::kSparseBsr || layout == at::kSparseBsc)
    return coo.to_sparse(layout, at::sparse_csr::getBlockSize(like));
  return coo.to_sparse(layout);
}

at::Tensor& put_compressed(const at::Tensor& result, at::Tensor& out) {
  if (out.is_same(result)) return out;
  out.resize_as_sparse_(result);
  return out.copy_(result);
}

at::Tensor& add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                    at::Tensor& out) {
  const at::ScalarType type = c10::promoteTypes(self.scalar_type(), other.scalar_type());
  const bool mixed = self.layout() == at::kStrided || other.layout() == at::kStrided;
  TORCH_CHECK(self.device() == other.device() && out.device() == self.device(),
              "add: Expected all tensors to be on the same device, but found ", self.device(), ", ",
              other.device(), " and ", out.device());
  if (mixed) {
    // PyTorch scales the sparse one, whichever comes first.
    const bool first = self.layout() == at::kStrided;
    const at::Tensor& dense = first ? self : other;
    const at::Tensor& sparse = first ? other : self;
    TORCH_CHECK(dense.sizes().equals(sparse.sizes()),
                "add: expected 'self' and 'other' to have same size, but self has size ",
                dense.sizes(), " while other has size ", sparse.sizes(),
                " (FYI: op2-sparse addition does not currently support broadcasting)");
    TORCH_CHECK(c10::canCast(type, out.scalar_type()), "Can't convert result type ", type,
                " to output ", out.scalar_type(), " in add operation");
    const at::Tensor result = at::add(dense.to(type), sparse.to_dense().to(type), alpha);
    out.resize_(result.sizes());
    return out.copy_(result);
  }
  TORCH_CHECK(self.sizes().equals(other.sizes()),
              "torch.add: Expected input tensors to have the same shape, but got tensor `self` "
              "with shape ",
              self.sizes(), " and tensor `other` with shape ", other.sizes());
  if (alpha.equal(0) || other._nnz() == 0) return put_compressed(self.to(out.scalar_type()), out);
  if (self._nnz() == 0) return put_compressed(other.mul(alpha).to(out.scalar_type()), out);
  TORCH_CHECK(self.layout() == other.layout(),
              "torch.add: Expected input tensors to have the same "
              "layout, but got ",
              self.layout(), " and ", other.layout());
  const at::Tensor sum = self.to_sparse().to(type).add(other.to_sparse().to(type), alpha);
  return put_compressed(in_layout_of(sum.coalesce(), self).to(out.scalar_type()), out);
}

// mat1 @ mat2, strided; at least one of them is compressed, and both are matrices.
at::Tensor strided_product(const at::Tensor& mat1, const at::Tensor& mat2) {
  if (mat2.layout() == at::kStrided) return product(mat1.to_sparse(), mat2);
  if (mat1.layout() == at::kStrided) return product(mat2.to_sparse().t(), mat1.t()).t();
  return product(mat1.to_sparse(), mat2.to_dense());
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                      const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  for (const auto& [name, t] : {std::pair{"mat1", &mat1}, {"mat2", &mat2}}) {
    TORCH_CHECK(t->dim() == 2, name, " must be a matrix, got ", t->dim(), "-D tensor");
    TORCH_CHECK(t->device() == self.device(),
                "Expected all tensors to be on the same device, but "
                "found at least two devices, ",
                self.device(), " and ", t->device(), "!");
  }
  TORCH_CHECK(mat1.size(1) == mat2.size(0), "mat1 and mat2 shapes cannot be multiplied (",
              mat1.size(0), "x", mat1.size(1), " and ", mat2.size(0), "x", mat2.size(1), ")");
  const auto wide = out.is_same(self)
                        ? c10::MaybeOwned<at::Tensor>::borrowed(self)
                        : at::expand_size(self, {mat1.size(0), mat2.size(1)}, "addmm");
  TORCH_CHECK(wide->dim() == 2 && wide->size(0) == mat1.size(0) && wide->size(1) == mat2.size(1),
              "The input tensor must be a matrix with size ", mat1.size(0), "x", mat2.size(1),
              ", but got a ", wide->dim(), "-D tensor with size ", wide->size(0), "x",
              wide->size(1));
  if (out.layout() == at::kStrided) {
    const at::Tensor mine = wide->layout() == at::kStrided ? *wide : wide->to_dense();
    const at::Tensor result = blend(mine, strided_product(mat1, mat2), beta, alpha);
    if (!out.is_same(self)) out.resize_(result.sizes());
    return out.copy_(result);
  }
  const auto sparse_of = [](const at::Tensor& t) { return t.to_sparse(); };
  at::Tensor result = at::_sparse_sparse_matmul(sparse_of(mat1), sparse_of(mat2));
  if (!alpha.equal(1)) result = result.mul(alpha);
  if (!beta.equal(0)) result = sparse_of(*wide).mul(beta).add(result).coalesce();
  return put_compressed(in_layout_of(result, out), out);
}

at::Tensor& addmv_out(const at::Tensor& self, const at::Tensor& mat, const at::Tensor& vec,
                      const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  TORCH_CHECK(mat.layout() != at::kSparseBsc,
              "torch.addmv: operation not supported for mat with SparseBsc layout");
  TORCH_CHECK(mat.dim() == 2, "addmv: Expected mat to be 2-D");
  TORCH_CHECK(vec.dim() == 1, "addmv: Expected vec to be 1-D");
  TORCH_CHECK(mat.size(1) == vec.size(0), "size mismatch, got input (", mat.size(0), "), mat (",
              mat.size(0), "x", mat.size(1), "), vec (", vec.size(0), ")");
  const auto wide = at::expand_size(self, {mat.size(0)});
  const at::Tensor result =
      blend(*wide, product(mat.to_sparse(), vec.unsqueeze(1)).squeeze(1), beta, alpha);
  if (!out.is_same(self)) out.resize_(result.sizes());
  return out.copy_(result);
}

at::Tensor addmv(const at::Tensor& self, const at::Tensor& mat, const at::Tensor& vec,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  at::Tensor out = at::empty({0}, vec.options());
  return addmv_out(self, mat, vec, beta, alpha, out);
}

// Batches of matrices, one below the other.
at::Tensor batched_product(const at::Tensor& mat1, const at::Tensor& mat2) {
  TORCH_CHECK(is_sparse_compressed(mat1) && mat2.layout() == at::kStrided,
              "bmm: Expected self to be sparse and mat2 to be dense, but got layouts ",
              mat1.layout(), " and ", mat2.layout());
  TORCH_CHECK(mat1.dim() == 3 && mat2.dim() == 3, "batch1 and batch2 must be 3D tensors");
  TORCH_CHECK(mat1.size(0) == mat2.size(0) && mat1.size(2) == mat2.size(1),
              "Expected size for first two dimensions of batch2 tensor to be: [", mat1.size(0),
              ", ", mat1.size(2), "] but got: [", mat2.size(0), ", ", mat2.size(1), "].");
  if (mat1.layout() == at::kSparseBsr || mat1.layout() == at::kSparseBsc)
    return at::bmm(mat1.to_dense(), mat2);
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(mat1);
  at::Tensor rows = expand_compressed(compressed, plain.size(-1)).to(at::kLong);
  at::Tensor columns = plain.to(at::kLong);
  if (mat1.layout() == at::kSparseCsc) std::swap(rows, columns);
  const at::Tensor batch = at::arange(mat1.size(0), rows.options()).unsqueeze(1);
  return product(rows.add(batch.mul(mat1.size(1))).flatten(),
                 columns.add(batch.mul(mat1.size(2))).flatten(), mat1.values().flatten(),
                 mat2.flatten(0, 1), mat1.size(0) * mat1.size(1))
      .view({mat1.size(0), mat1.size(1), mat2.size(2)});
}

at::Tensor& bmm_out(const at::Tensor& mat1, const at::Tensor& mat2, at::Tensor& out) {
  const at::Tensor result = batched_product(mat1, mat2);
  out.resize_(result.sizes());
  return out.copy_(result);
}

at::Tensor& baddbmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                        const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  const at::Tensor result = blend(self, batched_product(mat1, mat2), beta, alpha);
  if (!out.is_same(self)) out.resize_(result.sizes());
  return out.copy_(result);
}

at::Tensor baddbmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                   const at::Scalar& beta, const at::Scalar& alpha) {
  return blend(self, batched_product(mat1, mat2), beta, alpha);
}

// A triangle that is mostly empty is solved as a full one: chips have no use for the gaps. One with
// nothing in it is singular.
at::Tensor solve_triangle(const at::Tensor& b, const at::Tensor& a, bool upper, bool transpose,
                          bool unitriangular) {
  if (b.numel() == 0 || a._nnz() == 0)
    return at::full_like(b, std::numeric_limits<double>::quiet_NaN());
  return std::get<0>(at::triangular_solve(b, a.to_dense(), upper, transpose, unitriangular));
}

std::tuple<at::Tensor&, at::Tensor&> triangular_solve_out(const at::Tensor& b, const at::Tensor& a,
                                                          bool upper, bool transpose,
                                                          bool unitriangular, at::Tensor& x,
                                                          at::Tensor& clone) {
  const at::Tensor solved = solve_triangle(b, a, upper, transpose, unitriangular);
  x.resize_(solved.sizes());
  x.copy_(solved);
  return {x, clone};
}

std::tuple<at::Tensor, at::Tensor> triangular_solve(const at::Tensor& b, const at::Tensor& a,
                                                    bool upper, bool transpose,
                                                    bool unitriangular) {
  return {solve_triangle(b, a, upper, transpose, unitriangular), at::empty({0}, b.options())};
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("add.out", TORCH_FN(add_out));
  m.impl("addmm.out", TORCH_FN(addmm_out));
  m.impl("addmv", TORCH_FN(addmv));
  m.impl("addmv.out", TORCH_FN(addmv_out));
  m.impl("bmm", TORCH_FN(batched_product));
  m.impl("bmm.out", TORCH_FN(bmm_out));
  m.impl("baddbmm", TORCH_FN(baddbmm));
  m.impl("baddbmm.out", TORCH_FN(baddbmm_out));
  m.impl("triangular_solve", TORCH_FN(triangular_solve));
  m.impl("triangular_solve.X", TORCH_FN(triangular_solve_out));
}

}  // namespace
}  // namespace torch_tpu::dispatch::sparse
