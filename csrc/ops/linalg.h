// What the matrix factorizations share. All take matrices in the last two dims with any batch
// before them; "flat" ones have exactly one batch dim. Products are as exact as the dtype allows.
#pragma once

#include <functional>

#include "csrc/ops/helpers.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops::linalg {

Dims batch_of(const Value& x);
Dims shape_of(const Dims& batch, int64_t rows, int64_t columns);
Value with_batch(const Value& x, const Dims& batch);  // broadcasts the batch
Value flat(const Value& x);                           // [..., m, n] -> [B, m, n]
Value unflat(const Value& x, const Dims& batch);      // [B, ...] -> [batch, ...]

Value matrix_transpose(const Value& x);
Value conj(const Value& x);  // no-op for reals
Value real(const Value& x);  // the same
Value adjoint(const Value& x);
DType real_dtype(DType dtype);
double epsilon(DType dtype);  // distance from 1 to the next number, of the real part

Value positions(const Value& x, Compare direction);  // where row >= column (or <=, or ==)
Value triangle(const Value& x, bool upper, bool strict = false);
Value identity(Builder& b, DType dtype, const Dims& batch, int64_t n);
Value diagonal(const Value& x);  // [..., m, n] -> [..., min(m, n)]
Value slice_matrix(const Value& x, int64_t rows, int64_t columns);  // the upper left part
Value pad_matrix(const Value& x, int64_t rows, int64_t columns);    // with zeros

Value broadcast(const Value& x, const Value& like);  // to the shape of `like`

// Loops count in s32.
Value index(Builder& b, int64_t i);
Values counted_loop(Builder& b, int64_t steps, const Values& inits,
                    const std::function<Values(const Value& i, const Values& state)>& body);

struct Solve {
  bool left = true, upper = false, unit = false, transpose = false, conjugate = false;
};
// op(a) X = rhs, or X op(a) = rhs, for a triangular a.
Value solve(const Value& a, const Value& rhs, const Solve& s);

// A = P L U. `pivots` as LAPACK's: row i was exchanged with row pivots[i], counting from 1. Row i
// of P^T A is row permutation[i] of A. `info` is 0 or the first i, from 1, with U[i, i] = 0.
struct Lu {
  Value lu, pivots, permutation, info;
};
Lu lu_factor(const Value& a, bool pivot = true);
Value permutation_of(const Value& pivots, int64_t rows);  // s32 [..., rows]
Value take_rows(const Value& x, const Value& permutation);
Value invert_permutation(const Value& permutation);
// op(A) X = rhs or X op(A) = rhs, A given as L U and permutation; op is the identity or ^H.
Value lu_solve(const Value& lu, const Value& permutation, const Value& rhs, bool left,
               bool adjoint);

// Householder vectors below the diagonal and R on and above it, as LAPACK's geqrf.
struct Qr {
  Value packed, tau;
};
Qr qr_factor(const Value& a);
// H_1 H_2 ... H_k applied: the reflectors in the columns of `packed` [..., m, >= k].
Value apply_reflectors(const Value& packed, const Value& tau, const Value& x, bool left,
                       bool adjoint);
Value qr_q(const Qr& qr, int64_t columns);  // the first columns of Q

struct Eigh {
  Value values, vectors;  // ascending; columns
};
Eigh eigh(const Value& a, bool vectors);  // a is Hermitian, all of it

struct Svd {
  Value u, s, vh;  // s descending; u and vh reduced, or square when `full`
};
Svd svd(const Value& a, bool vectors, bool full);

void add_lu(Entries& t);          // linalg_lu.cpp
void add_lu_solve(Entries& t);    // linalg_solve.cpp
void add_qr(Entries& t);          // linalg_qr.cpp
void add_eigh(Entries& t);        // linalg_eigh.cpp
void add_svd(Entries& t);         // linalg_svd.cpp
void add_matrix_exp(Entries& t);  // linalg_exp.cpp

}  // namespace torch_tpu::ops::linalg
