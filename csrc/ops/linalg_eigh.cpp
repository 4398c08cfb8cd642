// Eigenvalues and eigenvectors of Hermitian matrices, by Jacobi rotations from both sides.
#include "csrc/ops/linalg_jacobi.h"

namespace torch_tpu::ops {
namespace linalg {
namespace {

// The diagonal as [B, n, 1], real.
Value real_diagonal(const Value& x) {
  const Value d = real(diagonal(x));
  return x.builder().reshape(d, {d.dim(0), d.dim(1), 1});
}

Value with_diagonal(const Value& x, const Value& values) {
  Builder& b = x.builder();
  const Value spread = b.broadcast_to(cast(values, x.dtype()), x.dims());
  return b.select(positions(x, Compare::kEq), spread, x);
}

// One step of all pairs: rotates rows and columns of a, and the rows of V^T, and deals anew. A pair
// whose element is within `limit` of zero counts as done.
std::pair<Values, Value> rotate_pairs(const Values& state, const Value& limit) {
  Builder& b = state[0].builder();
  const Value& a = state[0];
  const Pair rows = halves(a, 1);
  const Value alpha = real_diagonal(halves(rows.p, 2).p), beta = real_diagonal(halves(rows.q, 2).q);
  const Value corner = diagonal(halves(rows.p, 2).q);
  const Value gamma = b.reshape(corner, {corner.dim(0), corner.dim(1), 1});
  const Rotation r = rotation_for(alpha, beta, gamma);
  // J^T A^T, and then J^H (A J): by symmetry the same formula on the transpose, conjugated.
  const Value columns = joined(rotate(r, halves(matrix_transpose(a), 1)), 1);
  const Rotation conjugate{r.c, r.s, conj(r.w), r.gain};
  const Pair both = rotate(conjugate, halves(matrix_transpose(columns), 1));
  // What the rotation makes exact is written exactly.
  const Pair top = halves(both.p, 2), bottom = halves(both.q, 2);
  const Value zero = zeros_like(alpha);
  const Value upper =
      b.concatenate({with_diagonal(top.p, alpha - r.gain), with_diagonal(top.q, zero)}, 2);
  const Value lower =
      b.concatenate({with_diagonal(bottom.p, zero), with_diagonal(bottom.q, beta + r.gain)}, 2);
  Values next = {next_round(next_round(b.concatenate({upper, lower}, 1), 1), 2)};
  if (state.size() > 1) next.push_back(next_round(joined(rotate(r, halves(state[1], 1)), 1), 1));
  const Value size = b.abs(gamma);
  return {next, any(b.gt(size, b.broadcast_to(limit, size.dims())))};
}

}  // namespace

Eigh eigh(const Value& input, bool vectors) {
  Builder& b = input.builder();
  const Dims batch = batch_of(input);
  const int64_t n = input.dim(-1), even = n + n % 2;
  Dims of_values = batch;
  of_values.push_back(n);
  if (input.numel() == 0) {
    return {full(b, 0, real_dtype(input.dtype()), of_values), input};
  }
  const Value a0 = flat(input);
  const int64_t matrices = a0.dim(0);
  const Value scale = scale_of(a0);
  const Value scaled = a0 / b.broadcast_to(cast(scale, a0.dtype()), a0.dims());
  // A row and column of zeros makes the size even. They meet the others but never turn.
  const Value a = pad_matrix(scaled, even, even);
  const Value size = b.abs(a);
  const Value norm = b.sqrt(reduce_sum(size * size, {1, 2}, true));
  const Value limit = norm * (epsilon(a.dtype()) / static_cast<double>(n));
  Values state = {a};
  if (vectors) state.push_back(identity(b, a.dtype(), {matrices}, even));
  const Values out =
      sweeps(b, even - 1, state, [&](const Values& s) { return rotate_pairs(s, limit); });
  const Value found = b.slice_dim(b.reshape(real_diagonal(out[0]), {matrices, even}), 1, 0, n);
  const Value values = found * b.broadcast_to(b.reshape(scale, {matrices, 1}), found.dims());
  const Value lines = b.iota(Type(DType::kS32, {matrices, n}), 1);
  const auto ascending = [&](const Values& x) { return Values{b.lt(x[0], x[1])}; };
  const Values sorted = b.sort({values, lines}, 1, /*stable=*/true, ascending);
  Eigh result{b.reshape(sorted[0], of_values), {}};
  if (vectors) {
    const Value rows = take_rows(slice_matrix(out[1], n, n), sorted[1]);
    result.vectors = unflat(matrix_transpose(rows), batch);
  }
  return result;
}

}  // namespace linalg

namespace {

using namespace linalg;

Values lower__linalg_eigh(Call& c) {
  const Value a = c.tensor("A");
  const bool vectors = c.flag("compute_v");
  const std::string uplo = c.string("UPLO");
  const bool upper = uplo == "U" || uplo == "u";
  // Only the triangle that was asked for is read, and the real part of the diagonal.
  const Value half = triangle(a, upper, /*strict=*/true);
  const Value middle =
      c.b.select(positions(a, Compare::kEq), cast(real(a), a.dtype()), zeros_like(a));
  const Value whole = half + adjoint(half) + middle;
  if (a.numel() != 0 && a.dim(-1) > 2) {  // LAPACK has no iteration that could fail below
    const Value info = info_of_nans(flat(whole), std::max<int64_t>(a.dim(-1) - 1, 1));
    c.check_info(c.b.reshape(info, batch_of(a)), "linalg.eigh");
  }
  const Eigh e = eigh(whole, vectors);
  return {e.values, vectors ? e.vectors : full(c.b, 0, a.dtype(), c.out(1).dims)};
}

}  // namespace

void linalg::add_eigh(Entries& t) {
  t.push_back({.name = "_linalg_eigh", .lower = lower__linalg_eigh});
}

}  // namespace torch_tpu::ops
