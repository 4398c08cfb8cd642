// Pieces shared by the matrix factorizations.
#include <limits>

#include "csrc/ops/linalg.h"

namespace torch_tpu::ops::linalg {

Dims batch_of(const Value& x) { return Dims(x.dims().begin(), x.dims().end() - 2); }

Dims shape_of(const Dims& batch, int64_t rows, int64_t columns) {
  Dims dims = batch;
  dims.insert(dims.end(), {rows, columns});
  return dims;
}

Value with_batch(const Value& x, const Dims& batch) {
  return x.builder().broadcast_to(x, shape_of(batch, x.dim(-2), x.dim(-1)));
}

Value flat(const Value& x) {
  return x.builder().reshape(x, {stablehlo::product(batch_of(x)), x.dim(-2), x.dim(-1)});
}

Value unflat(const Value& x, const Dims& batch) {
  Dims dims = batch;
  dims.insert(dims.end(), x.dims().begin() + 1, x.dims().end());
  return x.builder().reshape(x, dims);
}

Value matrix_transpose(const Value& x) {
  Dims order = range(x.rank());
  std::swap(order[x.rank() - 2], order[x.rank() - 1]);
  return x.builder().transpose(x, order);
}

Value conj(const Value& x) { return is_complex(x.dtype()) ? x.builder().conj(x) : x; }
Value real(const Value& x) { return is_complex(x.dtype()) ? x.builder().real(x) : x; }
Value adjoint(const Value& x) { return matrix_transpose(conj(x)); }

DType real_dtype(DType dtype) {
  if (dtype == DType::kC64) return DType::kF32;
  return dtype == DType::kC128 ? DType::kF64 : dtype;
}

double epsilon(DType dtype) {
  return real_dtype(dtype) == DType::kF64 ? std::numeric_limits<double>::epsilon()
                                          : std::numeric_limits<float>::epsilon();
}

Value positions(const Value& x, Compare direction) {
  Builder& b = x.builder();
  const Type type(DType::kS32, x.dims());
  return b.compare(direction, b.iota(type, x.rank() - 2), b.iota(type, x.rank() - 1));
}

Value triangle(const Value& x, bool upper, bool strict) {
  const Compare direction =
      upper ? (strict ? Compare::kLt : Compare::kLe) : (strict ? Compare::kGt : Compare::kGe);
  return x.builder().select(positions(x, direction), x, zeros_like(x));
}

Value identity(Builder& b, DType dtype, const Dims& batch, int64_t n) {
  return cast(positions(full(b, 0, dtype, shape_of(batch, n, n)), Compare::kEq), dtype);
}

Value diagonal(const Value& x) {
  const int64_t n = std::min(x.dim(-2), x.dim(-1));
  const Value square = slice_matrix(x, n, n);
  const Value only =
      x.builder().select(positions(square, Compare::kEq), square, zeros_like(square));
  return reduce_sum(only, {x.rank() - 2});
}

Value slice_matrix(const Value& x, int64_t rows, int64_t columns) {
  Builder& b = x.builder();
  return b.slice_dim(b.slice_dim(x, x.rank() - 2, 0, rows), x.rank() - 1, 0, columns);
}

Value pad_matrix(const Value& x, int64_t rows, int64_t columns) {
  if (rows == x.dim(-2) && columns == x.dim(-1)) return x;
  Builder& b = x.builder();
  const Dims low(static_cast<size_t>(x.rank()), 0);
  Dims high = low;
  high[high.size() - 2] = rows - x.dim(-2);
  high[high.size() - 1] = columns - x.dim(-1);
  return b.pad(x, b.scalar(0, x.dtype()), low, high);
}

Value broadcast(const Value& x, const Value& like) {
  return like.builder().broadcast_to(x, like.dims());
}

Value index(Builder& b, int64_t i) { return b.splat_int(i, Type(DType::kS32, {})); }

Values counted_loop(Builder& b, int64_t steps, const Values& inits,
                    const std::function<Values(const Value&, const Values&)>& body) {
  Values all = {index(b, 0)};
  all.insert(all.end(), inits.begin(), inits.end());
  Values last = b.while_loop(
      all, [&](const Values& state) { return Values{b.lt(state[0], index(b, steps))}; },
      [&](const Values& state) {
        Values next = {state[0] + 1};
        for (Value& x : body(state[0], Values(state.begin() + 1, state.end()))) next.push_back(x);
        return next;
      });
  last.erase(last.begin());
  return last;
}

Value solve(const Value& a, const Value& rhs, const Solve& s) {
  if (rhs.numel() == 0 || a.numel() == 0) return rhs;
  return a.builder().triangular_solve(a, rhs, s.left, !s.upper, s.unit, s.transpose, s.conjugate);
}

}  // namespace torch_tpu::ops::linalg
