// CSR: sums and products of what is there, products sampled at its positions, and products whose
// terms are not summed but averaged or compared.
#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include "csrc/dispatch/sparse/coo.h"

namespace at::native::sparse {
TORCH_API void sparse_sampled_addmm_check_inputs(const Tensor&, const Tensor&, const Tensor&,
                                                 const Scalar&, const Scalar&, const Tensor&);
}

namespace torch_tpu::dispatch::sparse {
namespace {

at::Tensor rows_of(const at::Tensor& csr) {
  return expand_compressed(csr.crow_indices(), csr._nnz());
}

at::Tensor make_csr(const at::Tensor& like, const at::Tensor& crow, const at::Tensor& col,
                    const at::Tensor& values, at::IntArrayRef sizes) {
  return at::_sparse_csr_tensor_unsafe(crow, col, values, sizes,
                                       like.options().dtype(values.scalar_type()));
}

// Reduces values into `count` rows.
at::Tensor reduce_rows(const at::Tensor& values, const at::Tensor& row, int64_t count, bool prod) {
  if (!prod) return sum_rows(values, row, count);
  return at::ones({count}, values.options()).index_reduce(0, row, values, "prod");
}

at::Tensor reduce(const at::Tensor& self, at::IntArrayRef dims_, bool keepdim,
                  std::optional<at::ScalarType> type, bool prod) {
  TORCH_INTERNAL_ASSERT(self.is_sparse_csr());
  TORCH_CHECK(keepdim, "reduction operations on CSR tensors with keepdim=False is unsupported");
  TORCH_INTERNAL_ASSERT(self.dim() == 2);
  std::vector<int64_t> dims = dims_.vec();
  at::maybe_wrap_dims(dims, 2);
  if (dims.empty()) dims = {0, 1};
  const at::Tensor col = self.col_indices(), crow = self.crow_indices();
  const at::ScalarType given = type.value_or(self.scalar_type());
  const bool half = given == at::kHalf || given == at::kBFloat16;
  const at::Tensor values = self.values().to(half ? at::kFloat : given);
  const at::TensorOptions options = col.options();
  if (dims.size() == 2) {
    const int64_t count = std::min<int64_t>(1, self._nnz());
    const at::Tensor all = (prod ? values.prod() : values.sum()).expand({count}).clone();
    return make_csr(
        self, at::arange(2, options).mul(count), at::zeros({count}, options),
        c10::isIntegralType(given, /*includeBool=*/true) ? all.to(at::kLong) : all.to(given),
        {1, std::min<int64_t>(1, self.size(1))});
  }
  if (dims[0] == 0) {
    const auto [columns, place] = at::_unique(col, /*sorted=*/true, /*return_inverse=*/true);
    const int64_t count = columns.size(0);
    return make_csr(self, at::arange(2, options).mul(count), columns,
                    reduce_rows(values, place, count, prod).to(given), {1, self.size(1)});
  }
  const at::Tensor used = crow.diff().ne(0);
  const at::Tensor begins =
      at::cat({at::zeros({1}, options), used.cumsum(0).to(options)});  // row by row, 0 or 1 each
  const at::Tensor place = begins.index_select(0, rows_of(self));
  const int64_t count = used.sum().item<int64_t>();
  return make_csr(self, begins, at::zeros({count}, options),
                  reduce_rows(values, place, count, prod).to(given),
                  {self.size(0), std::min<int64_t>(1, self.size(1))});
}

at::Tensor csr_sum(const at::Tensor& self, at::IntArrayRef dims, bool keepdim,
                   std::optional<at::ScalarType> type) {
  return reduce(self, dims, keepdim, type, false);
}
at::Tensor csr_prod(const at::Tensor& self, at::IntArrayRef dims, bool keepdim,
                    std::optional<at::ScalarType> type) {
  return reduce(self, dims, keepdim, type, true);
}

at::Tensor& sampled_addmm_out(const at::Tensor& self, const at::Tensor& mat1,
                              const at::Tensor& mat2, const at::Scalar& beta,
                              const at::Scalar& alpha, at::Tensor& out) {
  at::native::sparse::sparse_sampled_addmm_check_inputs(self, mat1, mat2, beta, alpha, out);
  const at::ScalarType type = self.scalar_type();
  TORCH_CHECK(type == at::kDouble || type == at::kFloat || c10::isComplexType(type),
              "sparse_sampled_addmm: Expected self to be a floating-point or complex tensor, but "
              "got ",
              type);
  if (!out.is_same(self)) {
    // One matrix may serve a batch.
    std::vector<int64_t> sizes = mat1.sizes().slice(0, mat1.dim() - 2).vec();
    sizes.insert(sizes.end(), {self.size(-2), self.size(-1)});
    at::sparse_csr::get_sparse_csr_impl(out)->resize_(self._nnz(), sizes);
    out.copy_(self);
  }
  if (mat1.numel() == 0 || mat2.numel() == 0 || out._nnz() == 0) {
    out.values().mul_(beta);
    return out;
  }
  const int64_t count = out._nnz(), inner = mat1.size(-1);
  const auto taken = [&](const at::Tensor& from, const at::Tensor& rows) {
    const at::Tensor index = rows.reshape({-1, count, 1}).to(at::kLong).expand({-1, count, inner});
    return from.reshape({-1, from.size(-2), inner}).gather(1, index);
  };
  const at::Tensor dots = taken(mat1, expand_compressed(out.crow_indices(), count))
                              .mul(taken(mat2.transpose(-1, -2), out.col_indices()))
                              .sum(-1)
                              .view(out.values().sizes());
  out.values().copy_(blend(out.values(), dots, beta, alpha));
  return out;
}

at::Tensor sampled_addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                         const at::Scalar& beta, const at::Scalar& alpha) {
  at::Tensor out = at::empty({0, 0}, self.options());
  return sampled_addmm_out(self, mat1, mat2, beta, alpha, out);
}

void check_mm_reduce(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.layout() == at::kSparseCsr,
              "sparse_mm_reduce: expect self to be SparseCsr, got ", self.layout());
  TORCH_CHECK(self.dense_dim() == 0, "sparse_mm_reduce: expected non-hybrid self tensor.");
  TORCH_CHECK(self.dim() == 2, "sparse_mm_reduce: expected self to be a 2-D tensor, got ",
              self.dim(), "-D tensor.");
  TORCH_CHECK(other.layout() == at::kStrided,
              "sparse_mm_reduce: Expected other to be strided, got ", other.layout());
  TORCH_CHECK(other.scalar_type() == self.scalar_type(),
              "Expected tensor for argument #1 'other' "
              "to have scalar type ",
              self.scalar_type(), "; but got ", other.scalar_type(),
              " instead (while checking arguments for sparse_mm_reduce)");
  TORCH_CHECK(other.dim() == 2 && other.size(0) == self.size(1),
              "Expected a tensor of dimension 2 and tensor.size[0] == ", self.size(1),
              " but got : dimension ", other.dim(), " and tensor.size[0] = ", other.size(0));
}

std::tuple<at::Tensor, at::Tensor> mm_reduce(const at::Tensor& self, const at::Tensor& other,
                                             std::string_view how) {
  check_mm_reduce(self, other);
  TORCH_CHECK(how != "prod", "sparse_mm_reduce: reduce type of prod has not been enabled.");
  TORCH_CHECK(how == "sum" || how == "mean" || how == "amax" || how == "amin" || how == "max" ||
                  how == "min",
              "reduce argument must be either sum, prod, mean, amax or amin, got ", how);
  const int64_t count = self._nnz();
  const at::Tensor col = self.col_indices();
  at::Tensor arg = at::empty({0}, col.options());
  at::Tensor out = at::zeros({self.size(0), other.size(1)}, other.options());
  if (count == 0) return {out, arg};
  const at::ScalarType type = other.scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const at::ScalarType wide = half ? at::kFloat : type;
  const at::Tensor row = rows_of(self).to(at::kLong);
  const at::Tensor terms =
      self.values().to(wide).unsqueeze(1).mul(other.index_select(0, col).to(wide));
  if (how == "sum" || how == "mean") {
    out = sum_rows(terms, row, self.size(0));
    if (how == "mean") out = out.div(self.crow_indices().diff().clamp_min(1).unsqueeze(1));
    return {out.to(type), arg};
  }
  const bool largest = how == "amax" || how == "max";
  out = out.to(wide).index_reduce(0, row, terms, largest ? "amax" : "amin", /*include_self=*/false);
  if (at::GradMode::is_enabled() && (self.requires_grad() || other.requires_grad())) {
    // The first of the elements that are the extreme one.
    const at::Tensor element = at::arange(count, row.options()).unsqueeze(1).expand_as(terms);
    const at::Tensor none = at::full({}, count, row.options());
    const at::Tensor hit = terms.eq(out.index_select(0, row));
    arg = at::full(out.sizes(), count, row.options())
              .index_reduce(0, row, at::where(hit, element, none), "amin")
              .to(col.scalar_type());
  }
  return {out.to(type), arg};
}

std::tuple<at::Tensor, at::Tensor> mm_reduce_backward(const at::Tensor& self,
                                                      const at::Tensor& grad,
                                                      const at::Tensor& other, std::string_view how,
                                                      const at::Tensor& arg,
                                                      std::array<bool, 2> wanted) {
  check_mm_reduce(self, other);
  const int64_t count = self._nnz();
  const at::Tensor col = self.col_indices().to(at::kLong), row = rows_of(self).to(at::kLong);
  const at::Tensor values = self.values();
  at::Tensor part = grad.index_select(0, row);  // of each element and column
  if (how == "mean") {
    part = part.div(self.crow_indices().diff().clamp_min(1).index_select(0, row).unsqueeze(1));
  } else if (how != "sum" && count > 0) {
    const at::Tensor element = at::arange(count, row.options()).unsqueeze(1);
    part = part.mul(arg.index_select(0, row).eq(element).to(part.scalar_type()));
  }
  at::Tensor of_self, of_other;
  if (wanted[0]) {
    of_self =
        make_csr(self, self.crow_indices().clone(), self.col_indices().clone(),
                 part.mul(other.index_select(0, col)).sum(1).to(self.scalar_type()), self.sizes());
  }
  if (wanted[1]) {
    of_other = sum_rows(part.mul(values.unsqueeze(1)), col, other.size(0)).to(other.scalar_type());
  }
  return {of_self, of_other};
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_sparse_csr_sum.dim_dtype", TORCH_FN(csr_sum));
  m.impl("_sparse_csr_prod.dim_dtype", TORCH_FN(csr_prod));
  m.impl("sparse_sampled_addmm", TORCH_FN(sampled_addmm));
  m.impl("sparse_sampled_addmm.out", TORCH_FN(sampled_addmm_out));
  m.impl("_sparse_mm_reduce_impl", TORCH_FN(mm_reduce));
  m.impl("_sparse_mm_reduce_impl_backward", TORCH_FN(mm_reduce_backward));
}

}  // namespace
}  // namespace torch_tpu::dispatch::sparse
