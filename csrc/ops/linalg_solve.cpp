// What is computed from an LU factorization: solutions, inverse, determinant.
#include "csrc/ops/linalg.h"

namespace torch_tpu::ops {
namespace {

using namespace linalg;

Values lower_linalg_lu_solve(Call& c) {
  const Value lu = c.tensor("LU"), pivots = c.tensor("pivots"), rhs = c.tensor("B");
  c.check_range(pivots, 1, INT32_MAX,
                "Pivots given to lu_solve must all be greater or equal to 1. Did you properly pass "
                "the result of lu_factor?");
  c.check_range(pivots, INT32_MIN, lu.dim(-2) + 1,
                "Pivots given to lu_solve must all be smaller or equal to LU.size(-2). Did you "
                "properly pass the result of lu_factor?");
  const Dims batch(c.out().dims.begin(), c.out().dims.end() - 2);
  Dims rows = batch;
  rows.push_back(lu.dim(-2));
  const Value permutation = c.b.broadcast_to(permutation_of(pivots, lu.dim(-2)), rows);
  return {lu_solve(with_batch(lu, batch), permutation, with_batch(rhs, batch), c.flag("left"),
                   c.flag("adjoint"))};
}

Values lower__linalg_solve_ex(Call& c) {
  const Value a = c.tensor("A"), b = c.tensor("B");
  const Lu f = lu_factor(a);
  if (c.flag("check_errors")) c.check_info(f.info, "torch.linalg.solve_ex");
  const Dims& out = c.out().dims;
  // B is a batch of vectors when it looks like A without its last dim.
  const Dims leading(a.dims().begin(), a.dims().end() - 1);
  const bool vectors = b.rank() == 1 || (b.rank() == a.rank() - 1 && b.dims() == leading);
  Dims result = out;
  if (vectors) result.push_back(1);
  const Dims batch(result.begin(), result.end() - 2);
  Dims rhs_dims = b.dims(), rows = batch;
  if (vectors) rhs_dims.push_back(1);
  rows.push_back(a.dim(-1));
  const Value rhs = with_batch(c.b.reshape(b, rhs_dims), batch);
  const Value x = lu_solve(with_batch(f.lu, batch), c.b.broadcast_to(f.permutation, rows), rhs,
                           c.flag("left"), /*adjoint=*/false);
  return {c.b.reshape(x, out), f.lu, f.pivots, f.info};
}

Values lower_linalg_inv_ex(Call& c) {
  const Value a = c.tensor("A");
  const Lu f = lu_factor(a);
  if (c.flag("check_errors")) c.check_info(f.info, "linalg.inv_ex");
  const Value one = identity(c.b, a.dtype(), batch_of(a), a.dim(-1));
  return {lu_solve(f.lu, f.permutation, one, true, false), f.info};
}

// -1 for each row that was exchanged with another, multiplied.
Value permutation_sign(const Value& pivots, DType dtype) {
  Builder& b = pivots.builder();
  const int64_t last = pivots.rank() - 1;
  const Value moved = b.ne(pivots, b.iota(pivots.type(), last) + 1);
  const Value odd =
      b.and_(reduce_sum(cast(moved, DType::kS32), {last}),
             full(b, 1, DType::kS32, Dims(pivots.dims().begin(), pivots.dims().end() - 1)));
  return cast(odd * -2.0 + 1.0, dtype);
}

struct Determined {
  Lu f;
  Value pivots_sign, diagonal;
};

Determined factor_for_determinant(Call& c) {
  const Value a = c.tensor("A");
  // ATen's backward takes the factors to be those of A^T when A is contiguous and real.
  const bool transposed = c.contiguous("A") && !is_complex(a.dtype());
  const Lu f = lu_factor(transposed ? matrix_transpose(a) : a);
  return {f, permutation_sign(f.pivots, a.dtype()), diagonal(f.lu)};
}

Values lower__linalg_det(Call& c) {
  const Determined d = factor_for_determinant(c);
  const Value product = reduce_prod(d.diagonal, {d.diagonal.rank() - 1});
  return {product * d.pivots_sign, d.f.lu, d.f.pivots};
}

Values lower__linalg_slogdet(Call& c) {
  Builder& b = c.b;
  const Determined d = factor_for_determinant(c);
  const int64_t last = d.diagonal.rank() - 1;
  const Value sign = reduce_prod(b.sign(d.diagonal), {last}) * d.pivots_sign;
  return {sign, reduce_sum(b.log(b.abs(d.diagonal)), {last}), d.f.lu, d.f.pivots};
}

}  // namespace

void linalg::add_lu_solve(Entries& t) {
  t.push_back({.name = "linalg_lu_solve", .lower = lower_linalg_lu_solve});
  t.push_back({.name = "_linalg_solve_ex", .lower = lower__linalg_solve_ex});
  t.push_back({.name = "linalg_inv_ex", .lower = lower_linalg_inv_ex});
  t.push_back({.name = "_linalg_det", .lower = lower__linalg_det});
  t.push_back({.name = "_linalg_slogdet", .lower = lower__linalg_slogdet});
}

}  // namespace torch_tpu::ops
