// Compressed indices: to and from COO, and the checks of their invariants.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "csrc/dispatch/sparse/coo.h"

namespace torch_tpu::dispatch::sparse {
namespace {

at::Tensor coo_to_csr(const at::Tensor& rows, int64_t size, bool out_int32) {
  TORCH_CHECK(rows.dim() <= 1, "Input is supposed to be a vector, but got ", rows.dim(),
              " dimensional tensor.");
  if (rows.numel() == 0) {
    return at::zeros({size + 1}, rows.options().dtype(out_int32 ? at::kInt : at::kLong));
  }
  // How many rows come before each.
  return at::searchsorted(rows.contiguous(), at::arange(size + 1, rows.options()), out_int32);
}

at::Tensor csr_to_coo(const at::Tensor& compressed, const at::Tensor& plain, bool out_int32,
                      bool transpose) {
  TORCH_CHECK(compressed.dim() == plain.dim(),
              "crow_indices and col_indices are supposed to have the same dimensionality, but got ",
              compressed.dim(), " and ", plain.dim(), " dimensional tensors, respectively.");
  const at::TensorOptions options = compressed.options().dtype(out_int32 ? at::kInt : at::kLong);
  const int64_t batches = compressed.dim() - 1;
  if (plain.numel() == 0) return at::zeros({batches + 2, 0}, options);
  std::vector<at::Tensor> rows;
  for (int64_t d = 0; d < batches; ++d) {
    std::vector<int64_t> sizes(plain.dim(), 1);
    sizes[d] = plain.size(d);
    rows.push_back(at::arange(plain.size(d), options).view(sizes).expand(plain.sizes()).flatten());
  }
  rows.push_back(expand_compressed(compressed, plain.size(-1)).flatten().to(options));
  rows.push_back(plain.flatten().to(options));
  if (transpose) std::swap(rows[batches], rows[batches + 1]);
  return at::stack(rows);
}

at::Tensor& coo_to_csr_out(const at::Tensor& rows, int64_t size, bool out_int32, at::Tensor& out) {
  const at::Tensor result = coo_to_csr(rows, size, out_int32);
  out.resize_(result.sizes());
  return out.copy_(result);
}

at::Tensor& csr_to_coo_out(const at::Tensor& compressed, const at::Tensor& plain, bool out_int32,
                           bool transpose, at::Tensor& out) {
  const at::Tensor result = csr_to_coo(compressed, plain, out_int32, transpose);
  out.resize_(result.sizes());
  return out.copy_(result);
}

void validate(bool is_crow, const at::Tensor& cidx, const at::Tensor& idx, int64_t cdim,
              int64_t dim, int64_t nnz) {
  const char* c = is_crow ? "crow_indices" : "ccol_indices";
  const char* p = is_crow ? "col_indices" : "row_indices";
  const char* nc = is_crow ? "nrows" : "ncols";
  const char* np = is_crow ? "ncols" : "nrows";
  TORCH_CHECK(cidx.size(-1) == cdim + 1, c, " have wrong shape: ", c,
              ".shape[-1] = ", cidx.size(-1), " is not equal to ", nc, " + 1 = ", cdim + 1);
  TORCH_CHECK(idx.size(-1) == nnz, p, " have wrong shape: ", p, ".shape[-1] = ", idx.size(-1),
              " is not equal to ", "nnz = ", nnz);
  if (idx.scalar_type() == at::kInt) {
    const auto fits = [](int64_t n) { return static_cast<int64_t>(static_cast<int32_t>(n)) == n; };
    TORCH_CHECK(fits(dim), "32-bit integer overflow in ", is_crow ? "column" : "row",
                " dimension = ", dim);
    TORCH_CHECK(fits(cdim), "32-bit integer overflow in ", is_crow ? "row" : "column",
                " dimension = ", cdim);
    TORCH_CHECK(fits(nnz), "32-bit integer overflow in nnz = ", nnz);
  }
  if (cidx.numel() == 0) return;
  // All that can be wrong, in one read.
  const at::Tensor steps = cidx.diff();
  std::vector<at::Tensor> good{cidx.select(-1, 0).eq(0).all(), cidx.select(-1, -1).eq(nnz).all(),
                               steps.ge(0).logical_and(steps.le(dim)).all()};
  if (idx.numel() > 0) {
    good.push_back(idx.ge(0).logical_and(idx.lt(dim)).all());
    const at::Tensor row = expand_compressed(cidx, nnz);
    good.push_back(row.diff().ne(0).logical_or(idx.diff().gt(0)).all());
  }
  const at::Tensor read = at::stack(good).cpu();
  const bool* ok = read.const_data_ptr<bool>();
  TORCH_CHECK(ok[0], "`", c, "[..., 0] == 0` is not satisfied.");
  TORCH_CHECK(ok[1], "`", c, "[..., -1] == nnz` is not satisfied.");
  TORCH_CHECK(ok[2], "`0 <= ", c, "[..., 1:] - ", c, "[..., :-1] <= ", np, "` is not satisfied.");
  if (idx.numel() == 0) return;
  TORCH_CHECK(ok[3], "`0 <= ", p, " < ", np, "` is not satisfied.");
  TORCH_CHECK(ok[4], "`", p, "[..., ", c, "[..., i - 1]:", c, "[..., i]] for all i = 1, ..., ", nc,
              " are sorted and distinct along the last dimension values` is not satisfied.");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_convert_indices_from_coo_to_csr", TORCH_FN(coo_to_csr));
  m.impl("_convert_indices_from_coo_to_csr.out", TORCH_FN(coo_to_csr_out));
  m.impl("_convert_indices_from_csr_to_coo", TORCH_FN(csr_to_coo));
  m.impl("_convert_indices_from_csr_to_coo.out", TORCH_FN(csr_to_coo_out));
  m.impl("_validate_compressed_sparse_indices", TORCH_FN(validate));
}

}  // namespace
}  // namespace torch_tpu::dispatch::sparse
