// Triangular solves and the Cholesky factorization, which XLA has, and the cross product. The other
// factorizations are loops of our own, in the linalg_*.cpp beside this file.
#include "csrc/ops/linalg.h"

namespace torch_tpu::ops {
namespace {

using namespace linalg;

struct Factor {
  Value matrix, info;  // info: 0, or the order of the first minor that is not positive
};

// The order of the first leading minor of the Hermitian matrices x [B, n, n] that is not positive,
// by plain elimination: a step per column, so only for matrices known to have one.
Value failing_minor(const Value& x) {
  Builder& b = x.builder();
  const int64_t batch = x.dim(0), n = x.dim(-1);
  const Value zero = b.scalar(0, DType::kS32);
  const auto condition = [&](const Values& state) {
    return Values{b.lt(state[0], b.scalar(n, DType::kS32))};
  };
  const auto eliminate = [&](const Values& state) {
    const Value &k = state[0], &rest = state[1], &order = state[2];
    const Value column = b.dynamic_slice(rest, {zero, zero, k}, {batch, n, 1});
    const Value row = b.dynamic_slice(rest, {zero, k, zero}, {batch, 1, n});
    const Value pivot = b.dynamic_slice(rest, {zero, k, k}, {batch, 1, 1});
    const Value size = b.reshape(is_complex(x.dtype()) ? b.real(pivot) : pivot, {batch});
    const Value bad = b.not_(b.gt(size, zeros_like(size)));
    const Value first = b.and_(bad, b.eq(order, zeros_like(order)));
    const Value product = b.broadcast_to(column / b.broadcast_to(pivot, column.dims()), x.dims()) *
                          b.broadcast_to(row, x.dims());
    return Values{k + 1, rest - product, b.select(first, b.broadcast_to(k + 1, {batch}), order)};
  };
  return b.while_loop({zero, x, full(b, 0, DType::kS32, {batch})}, condition, eliminate)[2];
}

Factor cholesky(const Value& x, bool upper) {
  Builder& b = x.builder();
  const Dims batch = batch_of(x);
  if (x.numel() == 0) {
    return {x, full(b, 0, DType::kS32, batch)};
  }
  // XLA reads the lower triangle; PyTorch reads the one that was asked for.
  const Value lower = upper ? adjoint(x) : x;
  const Value factor = triangle(b.cholesky(lower, /*lower=*/true), false);
  // A matrix that is not positive definite comes back as NaN. Which minor failed, as PyTorch
  // reports it, is found separately; that costs nothing as long as all is well.
  const int64_t n = x.dim(-1), matrices = stablehlo::product(batch);
  const Value real = is_complex(x.dtype()) ? b.real(factor) : factor;
  const Value on_diagonal = b.and_(positions(real, Compare::kEq), b.ne(real, real));
  const Value failed = b.reduce(b.reshape(on_diagonal, {matrices, n, n}), b.scalar(0, DType::kBool),
                                {0, 1, 2}, Reduction::kOr);
  const Value below = triangle(lower, false);
  const Value middle = b.select(positions(x, Compare::kEq), x, zeros_like(x));
  const Value whole = b.reshape(below + adjoint(below) - middle, {matrices, n, n});
  const Value info = b.if_else(
      failed, [&](const Values&) { return Values{failing_minor(whole)}; },
      [&](const Values&) { return Values{full(b, 0, DType::kS32, {matrices})}; })[0];
  return {upper ? adjoint(factor) : factor, b.reshape(info, batch)};
}

Values lower_linalg_cholesky_ex(Call& c) {
  const Factor f = cholesky(c.tensor("self"), c.flag("upper"));
  if (c.flag("check_errors")) c.check_info(f.info, "linalg.cholesky_ex");
  return {f.matrix, f.info};
}

Values lower_cholesky(Call& c) {
  const Factor f = cholesky(c.tensor("self"), c.flag("upper"));
  c.check_info(f.info, "cholesky");
  return {f.matrix};
}

// (L L^H) X = rhs, or (U^H U) X = rhs.
Value cholesky_solve(const Value& factor, const Value& rhs, bool upper) {
  const bool complex = is_complex(factor.dtype());
  const Solve plain{.upper = upper};
  const Solve adjoined{.upper = upper, .transpose = true, .conjugate = complex};
  return solve(factor, solve(factor, rhs, upper ? adjoined : plain), upper ? plain : adjoined);
}

Values lower__cholesky_solve_helper(Call& c) {
  return {cholesky_solve(c.tensor("A"), c.tensor("self"), c.flag("upper"))};
}

Values lower_cholesky_inverse(Call& c) {
  const Value factor = c.tensor("self");
  const Value one = cast(positions(factor, Compare::kEq), factor.dtype());
  return {cholesky_solve(factor, one, c.flag("upper"))};
}

Values lower_linalg_solve_triangular(Call& c) {
  const Value a = c.tensor("self"), rhs = c.tensor("B");
  const Dims batch = broadcast_shape(batch_of(a), batch_of(rhs));
  return {
      solve(with_batch(a, batch), with_batch(rhs, batch),
            {.left = c.flag("left"), .upper = c.flag("upper"), .unit = c.flag("unitriangular")})};
}

Values lower_triangular_solve(Call& c) {
  const Value a = c.tensor("A"), rhs = c.tensor("self");
  const Dims batch = broadcast_shape(batch_of(a), batch_of(rhs));
  const Value full_a = with_batch(a, batch);
  return {solve(full_a, with_batch(rhs, batch),
                {.upper = c.flag("upper"),
                 .unit = c.flag("unitriangular"),
                 .transpose = c.flag("transpose")}),
          full_a};
}

Values lower_linalg_cross(Call& c) {
  Builder& b = c.b;
  const DType t = c.out().dtype;
  const Dims& dims = c.out().dims;
  const Value x = b.broadcast_to(cast(c.tensor("self"), t), dims);
  const Value y = b.broadcast_to(cast(c.tensor("other"), t), dims);
  const int64_t dim = wrap_dim(c.integer("dim"), c.out().rank());
  // Component i of the first product takes the next components of x and the ones after of y.
  const auto rotated = [&](const Value& v, int64_t by) {
    return b.concatenate({b.slice_dim(v, dim, by, 3), b.slice_dim(v, dim, 0, by)}, dim);
  };
  return {rotated(x, 1) * rotated(y, 2) - rotated(x, 2) * rotated(y, 1)};
}

}  // namespace

void add_linalg(Entries& t) {
  t.push_back({.name = "linalg_cholesky_ex", .lower = lower_linalg_cholesky_ex});
  t.push_back({.name = "cholesky", .lower = lower_cholesky});
  t.push_back({.name = "cholesky_inverse", .lower = lower_cholesky_inverse});
  t.push_back({.name = "_cholesky_solve_helper", .lower = lower__cholesky_solve_helper});
  t.push_back({.name = "linalg_solve_triangular", .lower = lower_linalg_solve_triangular});
  t.push_back({.name = "triangular_solve", .lower = lower_triangular_solve});
  t.push_back({.name = "linalg_cross", .lower = lower_linalg_cross});
  add_lu(t);
  add_lu_solve(t);
  add_qr(t);
  add_eigh(t);
  add_svd(t);
  add_matrix_exp(t);
}

}  // namespace torch_tpu::ops
