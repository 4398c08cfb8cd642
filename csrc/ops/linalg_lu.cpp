// The LU factorization with partial pivoting, and what unpacks it. Its users are in
// linalg_solve.cpp.
#include "csrc/ops/index.h"
#include "csrc/ops/linalg.h"

namespace torch_tpu::ops {
namespace linalg {
namespace {

// Wider matrices are factored panel by panel, so that most of the work is matrix products.
constexpr int64_t kPanel = 64, kUnblocked = 128;

struct Panel {
  Value a, permutation, pivots, info;
};

// LAPACK compares complex numbers by |re| + |im|.
Value pivot_size(const Value& x) {
  Builder& b = x.builder();
  return is_complex(x.dtype()) ? b.abs(b.real(x)) + b.abs(b.imag(x)) : b.abs(x);
}

// Factors `steps` columns of a [B, m, w]; the pivot of column i is looked for from row start + i.
Panel factor_panel(const Value& a0, const Value& start, int64_t steps, bool pivot) {
  Builder& b = a0.builder();
  const int64_t batch = a0.dim(0), m = a0.dim(1), w = a0.dim(2);
  const Value zero = index(b, 0);
  const Value rows = b.iota(Type(DType::kS32, {batch, m, 1}), 1);
  const Value columns = b.iota(Type(DType::kS32, {batch, 1, w}), 2);
  const Value none = full(b, 0, DType::kS32, {batch, 1, 1});

  const auto step = [&](const Value& i, const Values& state) {
    const Value &a = state[0], &permutation = state[1], &pivots = state[2], &info = state[3];
    const Value row = start + i;
    const Value at = broadcast(row, none);
    const Value column = b.dynamic_slice(a, {zero, zero, i}, {batch, m, 1});
    Value chosen = at;
    if (pivot) {
      const Value size = pivot_size(column);
      const Value sizes = b.select(b.ge(rows, broadcast(row, rows)), size, b.like(size, -1));
      const Value best = broadcast(reduce_max(sizes, {1}, true), sizes);
      const Value found = b.select(b.eq(sizes, best), rows, b.like(rows, m));
      const Value first = reduce_min(found, {1}, true);
      chosen = b.select(b.lt(first, b.like(first, m)), first, at);  // none among NaNs
    }
    const Value is_row = b.eq(rows, broadcast(row, rows));
    const Value is_chosen = b.eq(rows, broadcast(chosen, rows));
    const auto exchange = [&](const Value& x) {
      if (!pivot) return std::pair(x, b.dynamic_slice(x, {zero, row, zero}, {batch, 1, x.dim(2)}));
      const Value old = b.dynamic_slice(x, {zero, row, zero}, {batch, 1, x.dim(2)});
      const Value picked = b.select(broadcast(is_chosen, x), x, zeros_like(x));
      const Value fresh = reduce_sum(picked, {1}, true);
      const Value other = b.select(broadcast(is_chosen, x), broadcast(old, x), x);
      return std::pair(b.select(broadcast(is_row, x), broadcast(fresh, x), other), fresh);
    };
    const auto [exchanged, pivot_row] = exchange(a);
    const Value value = b.dynamic_slice(pivot_row, {zero, zero, i}, {batch, 1, 1});
    const Value singular = b.eq(value, zeros_like(value));
    const Value below_row = b.gt(rows, broadcast(row, rows));
    const Value scaled = b.and_(below_row, broadcast(b.not_(singular), below_row));
    const Value current = b.dynamic_slice(exchanged, {zero, zero, i}, {batch, m, 1});
    const Value factor = b.select(scaled, current / broadcast(value, current), current);
    const Value right = b.gt(columns, broadcast(i, columns));
    const Value update = b.and_(broadcast(scaled, a), broadcast(right, a));
    const Value product = broadcast(factor, a) * broadcast(pivot_row, a);
    const Value reduced = b.select(update, exchanged - product, exchanged);
    const Value next = b.dynamic_update_slice(reduced, factor, {zero, zero, i});
    const Value failed = b.and_(singular, b.eq(info, none));
    return Values{next, exchange(permutation).first,
                  b.dynamic_update_slice(pivots, chosen + 1, {zero, i, zero}),
                  b.select(failed, at + 1, info)};
  };
  const Value pivots = full(b, 0, DType::kS32, {batch, steps, 1});
  const Values out = counted_loop(b, steps, {a0, rows, pivots, none}, step);
  return {out[0], out[1], out[2], out[3]};
}

// All of a [B, m, n], whose sizes are multiples of kPanel as far as the diagonal goes.
Panel factor_by_panels(const Value& a0, int64_t panels, bool pivot) {
  Builder& b = a0.builder();
  const int64_t batch = a0.dim(0), m = a0.dim(1), n = a0.dim(2);
  const Value zero = index(b, 0);
  const Value none = full(b, 0, DType::kS32, {batch, 1, 1});
  const Value rows = b.iota(Type(DType::kS32, {batch, m, kPanel}), 1);
  const Value columns = b.iota(Type(DType::kS32, {batch, kPanel, n}), 2);

  const auto step = [&](const Value& block, const Values& state) {
    const Value start = block * kPanel;
    const Value end = start + kPanel;
    const Value strip = b.dynamic_slice(state[0], {zero, zero, start}, {batch, m, kPanel});
    const Panel panel = factor_panel(strip, start, kPanel, pivot);
    const Value exchanged = take_rows(state[0], panel.permutation);
    const Value corner = b.dynamic_slice(panel.a, {zero, start, zero}, {batch, kPanel, kPanel});
    const Value top = b.dynamic_slice(exchanged, {zero, start, zero}, {batch, kPanel, n});
    const Value solved = solve(corner, top, {.unit = true});
    const Value right = b.ge(columns, broadcast(end, columns));
    const Value upper = b.select(right, solved, zeros_like(solved));
    const Value below = b.ge(rows, broadcast(end, rows));
    const Value lower = b.select(below, panel.a, zeros_like(panel.a));
    const Value reduced = exchanged - matmul2(lower, upper);
    const Value with_top =
        b.dynamic_update_slice(reduced, b.select(right, solved, top), {zero, start, zero});
    const Value info = b.select(b.eq(state[3], none), panel.info, state[3]);
    return Values{b.dynamic_update_slice(with_top, panel.a, {zero, zero, start}),
                  take_rows(state[1], panel.permutation),
                  b.dynamic_update_slice(state[2], panel.pivots, {zero, start, zero}), info};
  };
  const Value lines = b.iota(Type(DType::kS32, {batch, m, 1}), 1);
  const Value pivots = full(b, 0, DType::kS32, {batch, panels * kPanel, 1});
  const Values out = counted_loop(b, panels, {a0, lines, pivots, none}, step);
  return {out[0], out[1], out[2], out[3]};
}

}  // namespace

Lu lu_factor(const Value& a, bool pivot) {
  Builder& b = a.builder();
  const Dims batch = batch_of(a);
  const int64_t matrices = stablehlo::product(batch), m = a.dim(-2), n = a.dim(-1);
  const int64_t k = std::min(m, n);
  Dims of_rows = batch, of_pivots = batch;
  of_rows.push_back(m);
  of_pivots.push_back(k);
  if (matrices == 0 || k == 0) {
    return {a, full(b, 0, DType::kS32, of_pivots),
            b.iota(Type(DType::kS32, of_rows), static_cast<int64_t>(batch.size())),
            full(b, 0, DType::kS32, batch)};
  }
  Panel whole;
  if (k <= kUnblocked) {
    whole = factor_panel(flat(a), index(b, 0), k, pivot);
  } else {
    // Zeros beside the matrix change nothing: no pivot is taken from them.
    const int64_t panels = (k + kPanel - 1) / kPanel, padded = panels * kPanel;
    whole = factor_by_panels(pad_matrix(flat(a), std::max(m, padded), std::max(n, padded)), panels,
                             pivot);
    whole.a = slice_matrix(whole.a, m, n);
    whole.permutation = slice_matrix(whole.permutation, m, 1);
    whole.pivots = slice_matrix(whole.pivots, k, 1);
    const Value beyond = b.gt(whole.info, b.like(whole.info, k));
    whole.info = b.select(beyond, zeros_like(whole.info), whole.info);
  }
  return {b.reshape(whole.a, a.dims()), b.reshape(whole.pivots, of_pivots),
          b.reshape(whole.permutation, of_rows), b.reshape(whole.info, batch)};
}

Value permutation_of(const Value& pivots, int64_t rows) {
  Builder& b = pivots.builder();
  const Dims batch(pivots.dims().begin(), pivots.dims().end() - 1);
  const int64_t matrices = stablehlo::product(batch), k = pivots.dim(-1);
  Dims dims = batch;
  dims.push_back(rows);
  const Value lines = b.iota(Type(DType::kS32, {matrices, rows}), 1);
  if (matrices == 0 || k == 0) return b.reshape(lines, dims);
  const Value targets = b.reshape(pivots, {matrices, k}) - 1;
  const Value zero = index(b, 0);
  const auto exchange = [&](const Value& i, const Values& state) {
    const Value& order = state[0];
    const Value at = broadcast(b.dynamic_slice(targets, {zero, i}, {matrices, 1}), lines);
    const Value is_target = b.eq(lines, at);
    const Value old = b.dynamic_slice(order, {zero, i}, {matrices, 1});
    const Value fresh = reduce_sum(b.select(is_target, order, zeros_like(order)), {1}, true);
    const Value moved = b.select(is_target, broadcast(old, order), order);
    return Values{b.dynamic_update_slice(moved, fresh, {zero, i})};
  };
  return b.reshape(counted_loop(b, k, {lines}, exchange)[0], dims);
}

Value take_rows(const Value& x, const Value& permutation) {
  if (x.numel() == 0) return x;
  Builder& b = x.builder();
  const int64_t m = x.dim(-2), n = x.dim(-1), matrices = stablehlo::product(batch_of(x));
  // One gather of whole rows out of all matrices.
  const Value order = b.reshape(permutation, {matrices, m});
  const Value base = b.iota(Type(DType::kS32, {matrices, m}), 0) * m;
  const Value rows = ops::take_rows(b.reshape(x, {matrices * m, n}), order + base, 0);
  return b.reshape(rows, x.dims());
}

Value invert_permutation(const Value& permutation) {
  if (permutation.numel() == 0) return permutation;
  Builder& b = permutation.builder();
  const int64_t last = permutation.rank() - 1;
  const Value lines = b.iota(permutation.type(), last);
  const auto ascending = [&](const Values& x) { return Values{b.lt(x[0], x[1])}; };
  return b.sort({permutation, lines}, last, /*stable=*/false, ascending)[1];
}

Value lu_solve(const Value& lu, const Value& permutation, const Value& rhs, bool left,
               bool adjoined) {
  if (!left) return adjoint(lu_solve(lu, permutation, adjoint(rhs), true, !adjoined));
  const bool conjugate = is_complex(lu.dtype());
  if (!adjoined) {
    const Value y = solve(lu, take_rows(rhs, permutation), {.unit = true});
    return solve(lu, y, {.upper = true});
  }
  const Value y = solve(lu, rhs, {.upper = true, .transpose = true, .conjugate = conjugate});
  const Value z = solve(lu, y, {.unit = true, .transpose = true, .conjugate = conjugate});
  return take_rows(z, invert_permutation(permutation));
}

}  // namespace linalg

namespace {

using namespace linalg;

struct Unpacked {
  Value l, u;
};

Unpacked unpack(const Value& lu) {
  const int64_t m = lu.dim(-2), n = lu.dim(-1), k = std::min(m, n);
  const Value below = triangle(slice_matrix(lu, m, k), false, /*strict=*/true);
  const Value l = below + cast(positions(below, Compare::kEq), lu.dtype());
  return {l, triangle(slice_matrix(lu, k, n), true)};
}

// P with A = P L U: a one in column i at row permutation[i].
Value permutation_matrix(const Value& permutation, DType dtype) {
  Builder& b = permutation.builder();
  const int64_t n = permutation.dim(-1), rank = permutation.rank();
  Dims dims = permutation.dims();
  dims.push_back(n);
  Dims kept = range(rank - 1);
  kept.push_back(rank);
  const Value column = b.broadcast_in_dim(permutation, dims, kept);
  return cast(b.eq(b.iota(column.type(), rank - 1), column), dtype);
}

Values lower_linalg_lu_factor_ex(Call& c) {
  const Lu f = lu_factor(c.tensor("A"), c.flag("pivot"));
  if (c.flag("check_errors")) c.check_info(f.info, "torch.linalg.lu_factor_ex");
  return {f.lu, f.pivots, f.info};
}

Values lower_linalg_lu(Call& c) {
  const Value a = c.tensor("A");
  const bool pivot = c.flag("pivot");
  const Lu f = lu_factor(a, pivot);
  const auto [l, u] = unpack(f.lu);
  const Value p =
      pivot ? permutation_matrix(f.permutation, a.dtype()) : full(c.b, 0, a.dtype(), c.out(0).dims);
  return {p, l, u};
}

Values lower_lu_unpack(Call& c) {
  const Value lu = c.tensor("LU_data"), pivots = c.tensor("LU_pivots");
  Values out;
  for (size_t i = 0; i < 3; ++i) out.push_back(full(c.b, 0, c.out(i).dtype, c.out(i).dims));
  if (c.flag("unpack_pivots")) {
    const int64_t m = lu.dim(-2);
    c.check_range(pivots, 1, m + 1,
                  "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive."
                  "Did you properly pass the result of lu_factor?");
    out[0] = permutation_matrix(permutation_of(pivots, m), lu.dtype());
  }
  if (c.flag("unpack_data")) {
    const auto [l, u] = unpack(lu);
    out[1] = l;
    out[2] = u;
  }
  return out;
}

}  // namespace

void linalg::add_lu(Entries& t) {
  t.push_back({.name = "linalg_lu_factor_ex", .lower = lower_linalg_lu_factor_ex});
  t.push_back({.name = "linalg_lu", .lower = lower_linalg_lu});
  t.push_back({.name = "lu_unpack", .lower = lower_lu_unpack});
}

}  // namespace torch_tpu::ops
