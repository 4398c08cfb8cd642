// Sums and products of sparse tensors with sparse and dense ones, and what lies under a mask.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/ops/mul_native.h>
#include <torch/library.h>

#include "csrc/dispatch/sparse/coo.h"

// What PyTorch's own functions ask of a device.
namespace at::native {
using mul_sparse_sparse_out_fn = void (*)(Tensor&, const Tensor&, const Tensor&);
DECLARE_DISPATCH(mul_sparse_sparse_out_fn, mul_sparse_sparse_out_stub)
using sparse_mask_intersection_out_fn = void (*)(Tensor&, const Tensor&, const Tensor&,
                                                 const std::optional<Tensor>&);
DECLARE_DISPATCH(sparse_mask_intersection_out_fn, sparse_mask_intersection_out_stub)
using sparse_mask_projection_out_fn = void (*)(Tensor&, const Tensor&, const Tensor&,
                                               const std::optional<Tensor>&, bool);
DECLARE_DISPATCH(sparse_mask_projection_out_fn, sparse_mask_projection_out_stub)
}  // namespace at::native

namespace torch_tpu::dispatch::sparse {
namespace {

void check_cast(at::ScalarType from, at::ScalarType to, const char* op) {
  TORCH_CHECK(c10::canCast(from, to), "Can't convert result type ", from, " to output ", to, " in ",
              op, " operation");
}

void check_device(const char* op, const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.device() == b.device() && a.device() == out.device(), op,
              ": Expected all tensors to be on the same device, but found ", a.device(), ", ",
              b.device(), " and ", out.device());
}

at::Tensor& add_dense_out(const at::Tensor& dense, const at::Tensor& sparse,
                          const at::Scalar& alpha, at::Tensor& out) {
  TORCH_CHECK(dense.sizes().equals(sparse.sizes()),
              "add: expected 'self' and 'other' to have same size, but self has size ",
              dense.sizes(), " while other has size ", sparse.sizes(),
              " (FYI: dense-sparse addition does not currently support broadcasting)");
  const at::ScalarType type = c10::promoteTypes(dense.scalar_type(), sparse.scalar_type());
  check_cast(type, out.scalar_type(), "add");
  out.resize_as_(dense);
  if (sparse._nnz() == 0 || sparse._values().numel() == 0) {
    if (!out.is_same(dense)) out.copy_(dense);
    return out;
  }
  // The sparse dimensions as one, so that an element of `sparse` is a row.
  std::vector<int64_t> rows{1};
  for (int64_t d = 0; d < sparse.dim(); ++d) {
    if (d < sparse.sparse_dim()) {
      rows[0] *= sparse.size(d);
    } else {
      rows.push_back(sparse.size(d));
    }
  }
  const at::Tensor at_rows = flatten(sparse._indices(), sparse.sizes());
  at::Tensor values = sparse._values().to(type);
  if (!alpha.equal(1)) values = values.mul(alpha).to(type);
  const at::Tensor before = dense.to(type).contiguous().view(rows);
  const at::Tensor after = type == at::kBool ? before.logical_or(sum_rows(values, at_rows, rows[0]))
                                             : before.index_add(0, at_rows, values);
  out.copy_(after.view(dense.sizes()));
  return out;
}

at::Tensor& add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                    at::Tensor& out) {
  check_device("add", out, self, other);
  if (!self.is_sparse()) return add_dense_out(self, other, alpha, out);
  TORCH_CHECK(other.is_sparse(),
              "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  TORCH_CHECK(self.sizes().equals(other.sizes()),
              "add: expected sizes of 'self' and 'other' to match, but ", self.sizes(),
              " != ", other.sizes());
  const at::ScalarType type = c10::promoteTypes(self.scalar_type(), other.scalar_type());
  check_cast(type, out.scalar_type(), "add");
  if (other._nnz() == 0) return at::copy_sparse_to_sparse_(out, self), out;
  at::Tensor values = other._values().to(type);
  if (!alpha.equal(1)) values = values.mul(alpha).to(type);
  if (self._nnz() == 0) {
    put(out, other.sizes(), other.dense_dim(), other._indices().clone(), values.clone(),
        other.is_coalesced());
    return out;
  }
  TORCH_CHECK(self.sparse_dim() == other.sparse_dim() && self.dense_dim() == other.dense_dim(),
              "add: expected 'self' and 'other' to have same density, but 'self' has ",
              self.sparse_dim(), " sparse dimensions while 'other' has ", other.sparse_dim(),
              " sparse dimensions");
  // One after the other: nothing is read, which suits gradients that are accumulated.
  at::Tensor sum = make_coo(self, self.sizes(), at::cat({self._indices(), other._indices()}, 1),
                            at::cat({self._values().to(type), values}, 0), /*coalesced=*/false);
  if (out.scalar_type() != type || sum._nnz() > sum.numel()) sum = coalesced(sum);
  put(out, sum.sizes(), sum.dense_dim(), sum._indices(), sum._values(), sum.is_coalesced());
  return out;
}

// Two tensors with each position once: what both have.
at::Tensor& mul_coalesced_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  const at::ScalarType type = c10::promoteTypes(self.scalar_type(), other.scalar_type());
  check_cast(type, out.scalar_type(), "mul");
  const auto [place, hit] =
      find(flatten(other._indices(), other.sizes()), flatten(self._indices(), self.sizes()));
  const at::Tensor mine = hit.nonzero().squeeze(1);  // read: how many there are
  const at::Tensor theirs = place.index_select(0, mine);
  put(out, other.sizes(), other.dense_dim(), self._indices().index_select(1, mine),
      self._values().to(type).index_select(0, mine).mul(
          other._values().to(type).index_select(0, theirs)),
      /*coalesced=*/true);
  return out;
}

at::Tensor& mul_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  const bool both = self.is_sparse() && other.is_sparse();
  if (both) check_device("mul", out, self, other);
  if (both && self.dim() > 0 && self.sizes().equals(other.sizes()) &&
      self.sparse_dim() == other.sparse_dim() && self._nnz() > 0 && other._nnz() > 0 &&
      self.is_coalesced() && other.is_coalesced()) {
    return mul_coalesced_out(self, other, out);
  }
  return at::native::mul_out_sparse_cpu(self, other, out);
}

// The elements of one tensor, `source`, with those of the other, `table`, at the same position.
struct Meeting {
  at::Tensor source, table;
  at::Tensor count;  // how many of the table's there are for each of the source's
  at::Tensor sum;    // of their values; 0 where there are none
};

Meeting meet(const at::Tensor& out, const at::Tensor& x, const at::Tensor& y,
             const std::optional<at::Tensor>& x_key, bool with_sum) {
  TORCH_CHECK(x.is_sparse() && y.is_sparse() && x.dim() == y.dim() &&
                  x.sparse_dim() == y.sparse_dim() &&
                  x.sizes().slice(0, x.sparse_dim()) == y.sizes().slice(0, y.sparse_dim()),
              "sparse_binary_op_intersection(): expects sparse inputs with equal dimensionality, ",
              "number of sparse dimensions, and shape of sparse dimensions");
  const at::ScalarType common = at::result_type(x, y);
  TORCH_CHECK(c10::canCast(common, out.scalar_type()), "Can't convert result type ", common,
              " to output ", out.scalar_type());
  // The one whose positions come in order is searched; else the larger one.
  const bool x_is_table =
      x.is_coalesced() != y.is_coalesced() ? x.is_coalesced() : x._nnz() >= y._nnz();
  Meeting m;
  m.table = x_is_table ? x : y;
  m.source = x_is_table ? y : x;
  const auto key_of = [&](const at::Tensor& t) {
    return x_key && t.is_same(x) ? *x_key : flatten(t._indices(), t.sizes());
  };
  const at::ScalarType type = at::result_type(m.source._values(), m.table._values());
  const auto [sorted, order] = key_of(m.table).sort(std::optional<bool>(true), 0);
  const at::Tensor key = key_of(m.source);
  const at::Tensor low = at::searchsorted(sorted, key);
  m.count = at::searchsorted(sorted, key, /*out_int32=*/false, /*right=*/true).sub(low);
  if (with_sum && m.table._nnz() > 0) {
    const at::Tensor values = m.table._values().to(type).index_select(0, order);
    const at::Tensor sums = sum_rows(values, at::searchsorted(sorted, sorted), values.size(0));
    const at::Tensor found = sums.index_select(0, low.clamp_max(values.size(0) - 1));
    m.sum = at::where(over_rows(m.count.gt(0), found), found, at::zeros({}, found.options()));
  } else if (with_sum) {
    std::vector<int64_t> sizes = m.table._values().sizes().vec();
    sizes[0] = m.source._nnz();
    m.sum = at::zeros(sizes, m.table._values().options().dtype(type));
  }
  return m;
}

void put_met(const at::Tensor& out, const Meeting& m, const at::Tensor& values) {
  put(out, at::infer_size(m.source.sizes(), m.table.sizes()), m.source.dense_dim(),
      m.source._indices().clone(), values, m.source.is_coalesced());
}

void mul_stub(at::Tensor& out, const at::Tensor& x, const at::Tensor& y) {
  const Meeting m = meet(out, x, y, std::nullopt, /*with_sum=*/true);
  put_met(out, m, m.source._values().to(m.sum.scalar_type()).mul(m.sum));
}

// The values of x at the positions of y.
void mask_stub(at::Tensor& out, const at::Tensor& x, const at::Tensor& y,
               const std::optional<at::Tensor>& x_key) {
  const Meeting m = meet(out, x, y, x_key, /*with_sum=*/true);
  put_met(out, m, m.sum);
}

// The values of y at the positions that x has, once or as often as it has them.
void projection_stub(at::Tensor& out, const at::Tensor& x, const at::Tensor& y,
                     const std::optional<at::Tensor>& x_key, bool accumulate) {
  const Meeting m = meet(out, x, y, x_key, /*with_sum=*/false);
  const at::Tensor values = m.source._values();
  const at::Tensor times = accumulate ? m.count : m.count.clamp_max(1);
  put_met(out, m, values.mul(over_rows(times, values).to(values.scalar_type())));
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("add.out", TORCH_FN(add_out));
  m.impl("mul.out", TORCH_FN(mul_out));
}

}  // namespace

// Named, so that the registrations below reach them.
constexpr auto kMul = &mul_stub;
constexpr auto kMask = &mask_stub;
constexpr auto kProjection = &projection_stub;

}  // namespace torch_tpu::dispatch::sparse

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(mul_sparse_sparse_out_stub, torch_tpu::dispatch::sparse::kMul)
REGISTER_PRIVATEUSE1_DISPATCH(sparse_mask_intersection_out_stub, torch_tpu::dispatch::sparse::kMask)
REGISTER_PRIVATEUSE1_DISPATCH(sparse_mask_projection_out_stub,
                              torch_tpu::dispatch::sparse::kProjection)
}  // namespace at::native
