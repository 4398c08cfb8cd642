// The QR factorization by Householder reflections, with LAPACK's signs, and products with its Q.
#include "csrc/ops/linalg.h"

namespace torch_tpu::ops {
namespace linalg {
namespace {

// The norm of the vectors along dim 1, which neither overflows nor underflows.
Value safe_norm(const Value& x) {
  Builder& b = x.builder();
  const Value size = b.abs(x);
  const Value largest = reduce_max(size, {1}, true);
  const Value usable = b.and_(b.gt(largest, zeros_like(largest)), b.is_finite(largest));
  const Value scale = b.select(usable, largest, ones_like(largest));
  const Value scaled = size / broadcast(scale, size);
  return b.sqrt(reduce_sum(scaled * scaled, {1}, true)) * scale;
}

// The reflectors as the columns of V: ones on the diagonal, zeros above.
Value unpack_reflectors(const Value& packed, int64_t k) {
  const Value below = triangle(slice_matrix(packed, packed.dim(-2), k), false, /*strict=*/true);
  return below + cast(positions(below, Compare::kEq), packed.dtype());
}

// T with H_1 ... H_k = I - V T V^H. Its inverse is known: the strict upper triangle of V^H V, and
// 1 / tau on the diagonal. Reflectors with tau = 0 are the identity and are left out.
struct Block {
  Value v, t;
};

Block block_reflector(const Value& packed, const Value& tau) {
  Builder& b = packed.builder();
  const int64_t k = tau.dim(-1);
  const Dims batch = batch_of(packed);
  const Value used = b.ne(tau, zeros_like(tau));
  Dims as_row = tau.dims();
  as_row.insert(as_row.end() - 1, 1);
  const Value v0 = unpack_reflectors(packed, k);
  const Value v = b.select(b.broadcast_to(b.reshape(used, as_row), v0.dims()), v0, zeros_like(v0));
  const Value inverse_tau = b.select(used, ones_like(tau) / tau, ones_like(tau));
  const Value gram = triangle(matmul2(adjoint(v), v), true, /*strict=*/true);
  const Value on_diagonal = broadcast(b.reshape(inverse_tau, as_row), gram);
  const Value inverse = b.select(positions(gram, Compare::kEq), on_diagonal, gram);
  return {v, solve(inverse, identity(b, packed.dtype(), batch, k), {.upper = true})};
}

}  // namespace

Qr qr_factor(const Value& a) {
  Builder& b = a.builder();
  const Dims batch = batch_of(a);
  const int64_t matrices = stablehlo::product(batch), m = a.dim(-2), n = a.dim(-1);
  const int64_t k = std::min(m, n);
  Dims of_tau = batch;
  of_tau.push_back(k);
  if (matrices == 0 || k == 0) return {a, full(b, 0, a.dtype(), of_tau)};
  const Value zero = index(b, 0);
  const Value rows = b.iota(Type(DType::kS32, {matrices, m, 1}), 1);
  const Value columns = b.iota(Type(DType::kS32, {matrices, 1, n}), 2);

  const auto step = [&](const Value& i, const Values& state) {
    const Value& r = state[0];
    const Value column = b.dynamic_slice(r, {zero, zero, i}, {matrices, m, 1});
    const Value alpha = b.dynamic_slice(column, {zero, i, zero}, {matrices, 1, 1});
    const Value below = b.gt(rows, broadcast(i, rows));
    const Value tail = b.select(below, column, zeros_like(column));
    const Value tail_norm = safe_norm(tail);
    const Value whole =
        safe_norm(b.select(b.ge(rows, broadcast(i, rows)), column, zeros_like(column)));
    // H = I - tau v v^H maps the column to beta e_i, with beta real and of the sign other than
    // alpha's. Nothing is to be done for a column that is like that already.
    const Value alpha_real = real(alpha);
    const Value negative = b.ge(alpha_real, zeros_like(alpha_real));
    const Value beta = b.select(negative, -whole, whole);
    Value done = b.eq(tail_norm, zeros_like(tail_norm));
    if (is_complex(a.dtype())) {
      const Value imag = b.imag(alpha);
      done = b.and_(done, b.eq(imag, zeros_like(imag)));
    }
    const Value complex_beta = cast(beta, alpha.dtype());
    const Value one = ones_like(alpha);
    const Value tau = b.select(done, zeros_like(alpha),
                               (complex_beta - alpha) / b.select(done, one, complex_beta));
    const Value divisor = b.select(done, one, alpha - complex_beta);
    const Value scaled = tail / broadcast(divisor, tail);
    const Value is_row = b.eq(rows, broadcast(i, rows));
    const Value v = b.select(is_row, ones_like(scaled), scaled);
    // The columns to the right: r - conj(tau) v (v^H r).
    const Value vh = broadcast(conj(v), r);
    const Value dots = reduce_sum(vh * r, {1}, true) * broadcast(conj(tau), columns);
    const Value right = b.gt(columns, broadcast(i, columns));
    const Value kept = b.select(right, dots, zeros_like(dots));
    const Value reflected = r - broadcast(v, r) * broadcast(kept, r);
    const Value fresh_alpha = b.select(done, alpha, complex_beta);
    const Value above = b.lt(rows, broadcast(i, rows));
    const Value fresh =
        b.select(above, column, b.select(is_row, broadcast(fresh_alpha, column), scaled));
    return Values{b.dynamic_update_slice(reflected, fresh, {zero, zero, i}),
                  b.dynamic_update_slice(state[1], tau, {zero, i, zero})};
  };
  const Value taus = full(b, 0, a.dtype(), {matrices, k, 1});
  const Values out = counted_loop(b, k, {flat(a), taus}, step);
  return {b.reshape(out[0], a.dims()), b.reshape(out[1], of_tau)};
}

Value apply_reflectors(const Value& packed, const Value& tau, const Value& x, bool left,
                       bool adjoined) {
  if (x.numel() == 0 || tau.numel() == 0) return x;
  const Block block = block_reflector(packed, tau);
  const Value t = adjoined ? adjoint(block.t) : block.t;
  if (left) return x - matmul2(block.v, matmul2(t, matmul2(adjoint(block.v), x)));
  return x - matmul2(matmul2(matmul2(x, block.v), t), adjoint(block.v));
}

Value qr_q(const Qr& qr, int64_t columns) {
  Builder& b = qr.packed.builder();
  const Dims dims = shape_of(batch_of(qr.packed), qr.packed.dim(-2), columns);
  const Value part = full(b, 0, qr.packed.dtype(), dims);
  const Value one = cast(positions(part, Compare::kEq), part.dtype());
  return apply_reflectors(qr.packed, qr.tau, one, true, false);
}

}  // namespace linalg

namespace {

using namespace linalg;

Values lower_geqrf(Call& c) {
  const Qr f = qr_factor(c.tensor("self"));
  return {f.packed, f.tau};
}

Values lower_linalg_qr(Call& c) {
  const Value a = c.tensor("A");
  const std::string mode = c.string("mode");
  const int64_t m = a.dim(-2), n = a.dim(-1), k = std::min(m, n);
  const Qr f = qr_factor(a);
  const Value q =
      mode == "r" ? full(c.b, 0, a.dtype(), c.out(0).dims) : qr_q(f, mode == "complete" ? m : k);
  return {q, triangle(slice_matrix(f.packed, mode == "complete" ? m : k, n), true)};
}

Values lower_linalg_householder_product(Call& c) {
  const Value packed = c.tensor("input"), tau = c.tensor("tau");
  return {qr_q({packed, tau}, packed.dim(-1))};
}

Values lower_ormqr(Call& c) {
  const Value packed = c.tensor("self"), tau = c.tensor("input2"), x = c.tensor("input3");
  return {apply_reflectors(packed, tau, x, c.flag("left"), c.flag("transpose"))};
}

}  // namespace

void linalg::add_qr(Entries& t) {
  t.push_back({.name = "geqrf", .lower = lower_geqrf});
  t.push_back({.name = "linalg_qr", .lower = lower_linalg_qr});
  t.push_back({.name = "linalg_householder_product", .lower = lower_linalg_householder_product});
  t.push_back({.name = "ormqr", .lower = lower_ormqr});
}

}  // namespace torch_tpu::ops
