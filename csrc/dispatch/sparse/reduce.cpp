// Softmax of the elements that are there, the gradient of a sum, and index_select, of COO tensors.
#include <ATen/ATen.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <torch/library.h>

#include "csrc/dispatch/sparse/coo.h"

namespace torch_tpu::dispatch::sparse {
namespace {

// Keys of the elements without dimension `dim`: equal where they are summed together.
at::Tensor keys_beside(const at::Tensor& t, int64_t dim) {
  std::vector<at::Tensor> rows;
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < t.sparse_dim(); ++d) {
    if (d == dim) continue;
    rows.push_back(t._indices().select(0, d));
    sizes.push_back(t.size(d));
  }
  if (rows.empty()) return at::zeros({t._nnz()}, t._indices().options());
  return flatten(at::stack(rows), sizes);
}

at::Tensor softmax_impl(const at::Tensor& self, int64_t dim_, bool half_to_float, bool log) {
  TORCH_CHECK(self.is_sparse());
  TORCH_CHECK(!half_to_float, log ? "log_softmax" : "softmax",
              " with half to float conversion is not supported on this device");
  const at::Tensor input = self.coalesce();
  const int64_t dim = c10::maybe_wrap_dim(dim_, input.dim());
  at::Tensor values = input._values();
  if (values.numel() == 0) {
    values = values.clone();
  } else if (dim >= input.sparse_dim()) {
    const int64_t at = dim - input.sparse_dim() + 1;
    values = log ? at::log_softmax(values, at) : at::softmax(values, at);
  } else {
    const at::Tensor group = group_places(keys_beside(input, dim));
    const at::Tensor top = at::full_like(values, -std::numeric_limits<double>::infinity())
                               .index_reduce(0, group, values, "amax")
                               .index_select(0, group);
    // A group of -inf alone gives NaN, as softmax does.
    const at::Tensor shifted = values.sub(top), powers = shifted.exp();
    const at::Tensor sums = sum_rows(powers, group, values.size(0)).index_select(0, group);
    values = log ? shifted.sub(sums.log()) : powers.div(sums);
  }
  return make_coo(input, input.sizes(), input._indices().clone(), values, true);
}

at::Tensor softmax_backward_impl(const at::Tensor& grad_, const at::Tensor& output_, int64_t dim_,
                                 const at::Tensor& input, bool log) {
  TORCH_CHECK(grad_.is_sparse() && output_.is_sparse());
  TORCH_CHECK(grad_.sizes().equals(input.sizes()),
              "expected sizes of grad and input to match, but ", grad_.sizes(),
              " != ", input.sizes());
  const int64_t dim = c10::maybe_wrap_dim(dim_, input.dim());
  const at::Tensor grad = grad_.coalesce(), output = output_.coalesce();
  const at::Tensor values = output._values();
  at::Tensor given = at::zeros_like(values);
  if (grad._nnz() > 0 && values.numel() > 0) {
    const auto [place, hit] =
        find(flatten(grad._indices(), grad.sizes()), flatten(output._indices(), output.sizes()));
    const at::Tensor all = grad._values().index_select(0, place);
    given = at::where(over_rows(hit, all), all, at::zeros({}, all.options()));
  }
  const at::Tensor terms = log ? given : given.mul(values);
  at::Tensor sums;
  if (values.numel() == 0) {
    sums = terms;
  } else if (dim >= output.sparse_dim()) {
    sums = terms.sum(dim - output.sparse_dim() + 1, /*keepdim=*/true);
  } else {
    const at::Tensor group = group_places(keys_beside(output, dim));
    sums = sum_rows(terms, group, values.size(0)).index_select(0, group);
  }
  const at::Tensor result = log ? given.sub(values.exp().mul(sums)) : values.mul(given.sub(sums));
  return make_coo(grad, output.sizes(), output._indices().clone(), result, output.is_coalesced());
}

at::Tensor softmax(const at::Tensor& self, int64_t dim, bool half_to_float) {
  return softmax_impl(self, dim, half_to_float, false);
}
at::Tensor log_softmax(const at::Tensor& self, int64_t dim, bool half_to_float) {
  return softmax_impl(self, dim, half_to_float, true);
}
at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim,
                            const at::Tensor& self) {
  return softmax_backward_impl(grad, output, dim, self, false);
}
at::Tensor log_softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim,
                                const at::Tensor& self) {
  return softmax_backward_impl(grad, output, dim, self, true);
}

// Each element of the input gets the gradient of the sum that it went into; 0 if that has none.
at::Tensor sum_backward(const at::Tensor& grad_, const at::Tensor& self, at::IntArrayRef dims) {
  if ((grad_.is_sparse() && grad_._nnz() == 0) || grad_.numel() == 0) {
    return at::zeros_like(self);
  }
  const at::Tensor input = self.coalesce();
  const auto summed = at::dim_list_to_bitset(dims, input.dim());
  const int64_t sparse_dim = input.sparse_dim();
  const at::Tensor values = input._values();
  std::vector<at::Tensor> rows;
  std::vector<int64_t> dense_dims;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (d < sparse_dim && !summed[d]) rows.push_back(input._indices().select(0, d));
    if (d >= sparse_dim && summed[d]) dense_dims.push_back(d - sparse_dim + 1);
  }
  at::Tensor given;
  if (rows.empty()) {
    TORCH_CHECK(!grad_.is_sparse(),
                "_sparse_sum_backward: expected grad_ Tensor to be dense since all sparse dims "
                "are summed");
    given = grad_.unsqueeze(0);
  } else {
    TORCH_CHECK(grad_.is_sparse(),
                "_sparse_sum_backward: expected grad_ Tensor to be sparse, but got dense");
    const at::Tensor grad = grad_.coalesce();
    if (static_cast<int64_t>(rows.size()) == sparse_dim) {
      given = grad._values();
    } else {
      const auto [place, hit] =
          find(flatten(grad._indices(), grad.sizes()), flatten(at::stack(rows), grad.sizes()));
      const at::Tensor all = grad._values().index_select(0, place);
      given = at::where(over_rows(hit, all), all, at::zeros({}, all.options()));
    }
  }
  for (const int64_t d : dense_dims) given = given.unsqueeze(d);
  return make_coo(input, input.sizes(), input._indices().clone(),
                  given.expand(values.sizes()).clone(at::MemoryFormat::Contiguous), true);
}

at::Tensor index_select(const at::Tensor& self, int64_t dim_, const at::Tensor& index) {
  const int64_t count = self.dim();
  TORCH_CHECK_INDEX(count > 0, "index_select() cannot be applied to a 0-dim tensor.");
  TORCH_CHECK_INDEX(
      index.dim() == 1 && index.dtype() == at::kLong && index.layout() == at::kStrided,
      "index_select() argument index must be 1-D strided (non-sparse) long-tensor.");
  const int64_t dim = c10::maybe_wrap_dim(dim_, count), size = self.size(dim);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[dim] = index.size(0);
  const at::Tensor indices = self._indices(), values = self._values();
  const int64_t sparse_dim = self.sparse_dim();
  if (dim >= sparse_dim) {
    return make_coo(self, sizes, indices, values.index_select(dim - sparse_dim + 1, index),
                    self.is_coalesced());
  }
  // A bad number is read with the sizes below; so it is raised here.
  const at::Tensor wanted = at::where(index.lt(0), index.add(size), index);
  if (index.numel() > 0) {
    const auto [low, high] = at::aminmax(index);
    const at::Tensor ends = at::stack({low, high}).cpu();
    for (const int64_t end : {ends[0].item<int64_t>(), ends[1].item<int64_t>()}) {
      TORCH_CHECK_INDEX(end >= -size && end < size, "index_select(): index contains ", end,
                        " that is out of range for tensor of size ", size, " at dimension ", dim);
    }
  }
  const auto [sorted, order] = indices.select(0, dim).sort(std::optional<bool>(true), 0);
  const at::Tensor low = at::searchsorted(sorted, wanted);
  const at::Tensor hits =
      at::searchsorted(sorted, wanted, /*out_int32=*/false, /*right=*/true) - low;
  const at::Tensor position = at::repeat_interleave(hits);  // read: how many elements there are
  const at::Tensor rank = at::arange(position.size(0), position.options()) -
                          (hits.cumsum(0) - hits).index_select(0, position);
  const at::Tensor element = order.index_select(0, low.index_select(0, position) + rank);
  at::Tensor chosen = indices.index_select(1, element);
  std::vector<at::Tensor> rows = chosen.unbind(0);
  rows[dim] = position;
  const bool in_order = self.is_coalesced() && dim == 0;
  return make_coo(self, sizes, at::stack(rows), values.index_select(0, element), in_order);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_softmax", TORCH_FN(softmax));
  m.impl("_sparse_log_softmax", TORCH_FN(log_softmax));
  m.impl("_sparse_softmax_backward_data", TORCH_FN(softmax_backward));
  m.impl("_sparse_log_softmax_backward_data", TORCH_FN(log_softmax_backward));
  m.impl("_sparse_sum_backward", TORCH_FN(sum_backward));
  m.impl("index_select", TORCH_FN(index_select));
}

}  // namespace
}  // namespace torch_tpu::dispatch::sparse
