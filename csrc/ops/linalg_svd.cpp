// The singular value decomposition, by Jacobi rotations from one side: they make the columns of A
// orthogonal, A V = U S.
#include <c10/util/Exception.h>

#include "csrc/ops/linalg_jacobi.h"

namespace torch_tpu::ops {
namespace linalg {
namespace {

Value squared_norms(const Value& rows) {
  Builder& b = rows.builder();
  const Value size = b.abs(rows);
  return reduce_sum(size * size, {2}, true);
}

struct Meeting {
  Rotation rotation;
  Value open;
};

Meeting meet(const Pair& x) {
  Builder& b = x.p.builder();
  const Value alpha = squared_norms(x.p), beta = squared_norms(x.q);
  const Value gamma = reduce_sum(conj(x.p) * x.q, {2}, true);
  // Pairs that are orthogonal already do not turn, so a sweep that finds no others is the last.
  const Value rounding = b.sqrt(alpha) * b.sqrt(beta) * epsilon(x.p.dtype());
  const Value open = b.gt(b.abs(gamma), rounding);
  return {rotation_for(alpha, beta, b.select(open, gamma, zeros_like(gamma))), any(open)};
}

struct Columns {
  Value rows;  // [B, n, m]: the orthogonal columns U S, as rows
  Value vt;    // [B, n, n]: the columns of V, as rows
};

// Of a [B, m, n].
Columns make_orthogonal(const Value& a, bool vectors) {
  Builder& b = a.builder();
  const int64_t matrices = a.dim(0), m = a.dim(1), n = a.dim(2), even = n + n % 2;
  Values state = {pad_matrix(matrix_transpose(a), even, m)};
  if (vectors) state.push_back(identity(b, a.dtype(), {matrices}, even));
  const Values out = sweeps(b, even - 1, state, [&](const Values& s) {
    const Meeting meeting = meet(halves(s[0], 1));
    Values next;
    for (const Value& x : s) {
      next.push_back(next_round(joined(rotate(meeting.rotation, halves(x, 1)), 1), 1));
    }
    return std::pair(next, meeting.open);
  });
  return {slice_matrix(out[0], n, m), vectors ? slice_matrix(out[1], n, n) : Value()};
}

Svd svd_of_tall(const Value& input, bool vectors, bool full_u) {
  Builder& b = input.builder();
  const Dims batch = batch_of(input);
  const Value a0 = flat(input);
  const int64_t matrices = a0.dim(0), m = a0.dim(1), n = a0.dim(2);
  const Value scale = scale_of(a0);
  const Value a = a0 / b.broadcast_to(cast(scale, a0.dtype()), a0.dims());
  const Columns columns = make_orthogonal(a, vectors);
  const Value sizes = b.reshape(b.sqrt(squared_norms(columns.rows)), {matrices, n});
  const Value norms = sizes * b.broadcast_to(b.reshape(scale, {matrices, 1}), sizes.dims());
  const Value lines = b.iota(Type(DType::kS32, {matrices, n}), 1);
  const auto descending = [&](const Values& x) { return Values{b.gt(x[0], x[1])}; };
  const Values sorted = b.sort({norms, lines}, 1, /*stable=*/true, descending);
  Svd out{{}, unflat(sorted[0], batch), {}};
  if (!vectors) return out;
  // U S is as good as orthogonal, so its QR factorization only divides by S. But it also gives
  // vectors that go with singular values of zero, and the rest of a full U.
  const Qr qr = qr_factor(matrix_transpose(take_rows(columns.rows, sorted[1])));
  const Value r = real(diagonal(qr.packed));
  const Value negative = b.lt(r, zeros_like(r));
  const Value sign = cast(b.select(negative, -ones_like(r), ones_like(r)), a.dtype());
  const Value q = qr_q(qr, full_u ? m : n);
  const Value rest = full(b, 1, a.dtype(), {matrices, q.dim(-1) - n});
  const Value signs = q.dim(-1) == n ? sign : b.concatenate({sign, rest}, 1);
  const Value spread = b.broadcast_to(b.reshape(signs, {matrices, 1, q.dim(-1)}), q.dims());
  out.u = unflat(q * spread, batch);
  out.vh = unflat(conj(take_rows(columns.vt, sorted[1])), batch);
  return out;
}

}  // namespace

Svd svd(const Value& a, bool vectors, bool full_matrices) {
  Builder& b = a.builder();
  const Dims batch = batch_of(a);
  const int64_t m = a.dim(-2), n = a.dim(-1);
  if (a.numel() == 0) {
    Dims of_values = batch;
    of_values.push_back(std::min(m, n));
    Svd out{{}, full(b, 0, real_dtype(a.dtype()), of_values), {}};
    const auto part = [&](int64_t size, bool rows) {
      const Value one = identity(b, a.dtype(), batch, size);
      const int64_t k = full_matrices ? size : std::min(m, n);
      return rows ? slice_matrix(one, k, size) : slice_matrix(one, size, k);
    };
    if (vectors) {
      out.u = part(m, false);
      out.vh = part(n, true);
    }
    return out;
  }
  if (m >= n) return svd_of_tall(a, vectors, full_matrices);
  const Svd other = svd_of_tall(adjoint(a), vectors, full_matrices);
  if (!vectors) return other;
  return {adjoint(other.vh), other.s, adjoint(other.u)};
}

}  // namespace linalg

namespace {

using namespace linalg;

Values lower__linalg_svd(Call& c) {
  const Value a = c.tensor("A");
  const bool vectors = c.flag("compute_uv");
  TORCH_CHECK(!c.has("driver"),
              "torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with "
              "cuSOLVER backend.");
  if (a.numel() != 0) {
    c.check_info(c.b.reshape(info_of_nans(flat(a), -4), batch_of(a)), "linalg.svd");
  }
  const Svd f = svd(a, vectors, c.flag("full_matrices"));
  if (vectors) return {f.u, f.s, f.vh};
  return {full(c.b, 0, a.dtype(), c.out(0).dims), f.s, full(c.b, 0, a.dtype(), c.out(2).dims)};
}

}  // namespace

void linalg::add_svd(Entries& t) {
  t.push_back({.name = "_linalg_svd", .lower = lower__linalg_svd});
}

}  // namespace torch_tpu::ops
