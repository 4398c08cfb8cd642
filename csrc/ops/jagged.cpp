// Rows of several sequences, one sequence after the other (a jagged tensor's values), to and from
// a dense batch that is padded to one length. Offsets say where each sequence begins and ends.
#include <cmath>
#include <string>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

struct Sequences {
  Value starts, lengths, end;  // s32 [batch], [batch], [1]
};

Sequences sequences_of(Call& c) {
  Builder& b = c.b;
  const Values all = c.tensors("offsets");
  if (all.size() != 1) throw std::invalid_argument("expected one jagged dimension");
  const Value offsets = b.convert(all[0], DType::kS32);
  const int64_t batch = offsets.dim(0) - 1;
  Sequences s;
  s.starts = b.slice_dim(offsets, 0, 0, batch);
  s.lengths = b.subtract(b.slice_dim(offsets, 0, 1, batch + 1), s.starts);
  s.end = b.slice_dim(offsets, 0, batch, batch + 1);
  return s;
}

// An infinite padding is the extreme number of a type without infinities.
Value padding_of(Call& c, DType t) {
  const double padding = c.known("padding_value")->to_double();
  if (!stablehlo::is_float(t) && !stablehlo::is_complex(t) && std::isinf(padding)) {
    return padding > 0 ? c.b.highest(t) : c.b.lowest(t);
  }
  return cast(c.b.scalar(padding, DType::kF64), t);
}

Values lower_jagged_to_padded(Call& c) {
  Builder& b = c.b;
  const Value values = c.tensor("values");
  const Dims& dims = c.out().dims;
  const Value padding = b.broadcast_to(padding_of(c, values.dtype()), dims);
  if (stablehlo::product(dims) == 0 || values.dim(0) == 0) return {padding};
  const Sequences s = sequences_of(c);
  const Dims rows = {dims[0], dims[1]};
  const Value position = b.iota(Type(DType::kS32, rows), 1);
  const Value at = b.add(position, b.broadcast_in_dim(s.starts, rows, {0}));
  const Value inside = b.lt(position, b.broadcast_in_dim(s.lengths, rows, {0}));
  return {b.select(b.broadcast_in_dim(inside, dims, {0, 1}), take_rows(values, at, 0), padding)};
}

// With the number of rows known; the caller finds it where it is not given.
Values lower_padded_to_jagged(Call& c) {
  Builder& b = c.b;
  const Value dense = c.tensor("dense");
  const int64_t total = c.integer("total_L");
  const int64_t longest = dense.dim(1);
  Dims flat(dense.dims().begin() + 1, dense.dims().end());
  flat[0] *= dense.dim(0);
  Dims dims = flat;
  dims[0] = total;
  const Sequences s = sequences_of(c);
  const std::string op = "_padded_dense_to_jagged_forward(): ";
  c.check_range(s.end, total, total + 1, op + "final offset should match total_L value");
  if (dense.dim(0) > 0) {
    c.check_range(
        s.lengths, 0, longest + 1,
        op + "found batch item of length {} when max length specified by padded input is " +
            std::to_string(longest));
  }
  if (stablehlo::product(dims) == 0 || stablehlo::product(flat) == 0) {
    return {full(b, 0, dense.dtype(), dims)};
  }
  const Value id = segment_ids(s.starts, total);
  const Value sequence = b.maximum(id, zeros_like(id));  // rows before the first one are in none
  const Value position =
      b.subtract(b.iota(Type(DType::kS32, {total}), 0), take_rows(s.starts, sequence, 0));
  return {take_rows(b.reshape(dense, flat), b.add(sequence * longest, position), 0)};
}

}  // namespace

void add_jagged(Entries& t) {
  t.push_back({.name = "_jagged_to_padded_dense_forward",
               .lower = lower_jagged_to_padded,
               .keyed = {"padding_value"}});
  t.push_back({.name = "_padded_dense_to_jagged_forward",
               .lower = lower_padded_to_jagged,
               .internal = true,
               .no_meta = true});
}

}  // namespace torch_tpu::ops
