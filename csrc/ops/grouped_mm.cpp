// Grouped products (experts): `offs` holds where each group ends, on the device. A group is worked
// off in blocks of rows; the loop runs as often as there are blocks, so the arithmetic is that of
// the rows there are and one program serves every distribution of rows over groups.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/low_bit.h"
#include "csrc/ops/matmul_precision.h"
#include "csrc/ops/scan.h"

namespace torch_tpu::ops {
namespace {

using stablehlo::DotDims;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(std::string("[grouped_mm] expected ") + what);
}

Value product(const Value& a, const Value& b, const DotDims& dims) {
  if (is_float8(a.dtype())) return float8_dot(a, b, dims);
  return a.builder().dot_general(a, b, dims, opmath(a.dtype()), matmul_precision(a.dtype()));
}

// How the groups are cut into blocks; vectors of one entry per group, s32.
struct Blocks {
  int64_t size;  // rows per block
  Value starts;  // first row
  Value ends;    // row after the last
  Value past;    // blocks up to and including this group
  Value total;   // all blocks
};

Blocks blocks_of(const Value& offs, int64_t rows) {
  Builder& b = offs.builder();
  const int64_t groups = offs.dim(0);
  Blocks blocks;
  // About a group's fair share, in whole tiles of 8 rows, up to 128.
  const int64_t share = (rows + groups - 1) / groups;
  blocks.size = std::clamp<int64_t>((share + 7) / 8 * 8, 8, 128);
  blocks.ends = cast(offs, DType::kS32);
  const Value zero = b.splat(0, Type(DType::kS32, {1}));
  blocks.starts = b.concatenate({zero, b.slice_dim(blocks.ends, 0, 0, groups - 1)}, 0);
  const Value size = b.like(blocks.ends, blocks.size);
  const Value count = b.divide(blocks.ends - blocks.starts + (blocks.size - 1), size);
  blocks.past = scan(count, 0, Reduction::kAdd);
  blocks.total = b.reshape(b.slice_dim(blocks.past, 0, groups - 1, groups), {});
  return blocks;
}

struct Block {
  Value group, start, end;  // s32 scalars; rows start .. min(start + size, end)
};

Block block_at(const Blocks& blocks, const Value& i) {
  Builder& b = i.builder();
  const auto pick = [&](const Value& x, const Value& at) {
    return b.reshape(b.dynamic_slice(x, {at}, {1}), {});
  };
  const Value before = b.le(blocks.past, b.broadcast_to(i, blocks.past.dims()));
  Block block;
  block.group = reduce_sum(cast(before, DType::kS32), {0});
  block.end = pick(blocks.ends, block.group);
  // Counted from the group's last block, whose number is known without the first one's.
  const Value start = pick(blocks.starts, block.group);
  const Value rows = block.end - start;
  const Value size = b.like(i, blocks.size);
  const Value count = b.divide(rows + (blocks.size - 1), size);
  block.start = start + (i - pick(blocks.past, block.group) + count) * blocks.size;
  return block;
}

Value pad_rows(const Value& x, int64_t dim, int64_t rows) {
  Dims low(x.rank(), 0), high(x.rank(), 0);
  high[dim] = rows;
  return x.builder().pad(x, x.builder().scalar(0, x.dtype()), low, high);
}

// Whether each row of a block is inside the group; [size] broadcast along `dim` of dims.
Value inside(const Block& block, const Dims& dims, int64_t dim) {
  Builder& b = block.start.builder();
  const Value row = b.iota(Type(DType::kS32, dims), dim) + b.broadcast_to(block.start, dims);
  return b.lt(row, b.broadcast_to(block.end, dims));
}

template <typename Step>
Value over_blocks(const Blocks& blocks, const Value& init, const Step& step) {
  Builder& b = init.builder();
  const auto more = [&](const Values& v) -> Values { return {b.lt(v[0], blocks.total)}; };
  const auto body = [&](const Values& v) -> Values {
    return {v[0] + 1, step(block_at(blocks, v[0]), v[1])};
  };
  return b.while_loop({b.scalar(0, DType::kS32), init}, more, body)[1];
}

// Rows [M, K] against a matrix per group [G, K, N]: [M, N] in the accumulation dtype. Rows beyond
// the last group are zero.
Value rows_by_group(const Value& x, const Value& weights, const Value& offs) {
  Builder& b = x.builder();
  const int64_t m = x.dim(0), k = x.dim(1), n = weights.dim(2);
  if (m == 0 || k == 0 || n == 0) return full(b, 0, opmath(x.dtype()), {m, n});
  const Blocks blocks = blocks_of(offs, m);
  const Value padded = pad_rows(x, 0, blocks.size);
  const Dims shape = {blocks.size, n};
  const Value init = full(b, 0, opmath(x.dtype()), {m + blocks.size, n});
  const Value zero = b.scalar(0, DType::kS32);
  const Value result = over_blocks(blocks, init, [&](const Block& block, const Value& out) {
    const Value rows = b.dynamic_slice(padded, {block.start, zero}, {blocks.size, k});
    const Value weight = b.dynamic_slice(weights, {block.group, zero, zero}, {1, k, n});
    const Value y = product(rows, b.reshape(weight, {k, n}), {{}, {}, {1}, {0}});
    const Value old = b.dynamic_slice(out, {block.start, zero}, shape);
    const Value merged = b.select(inside(block, shape, 0), y, old);
    return b.dynamic_update_slice(out, merged, {block.start, zero});
  });
  return b.slice_dim(result, 0, 0, m);
}

// Groups along the contracted dimension: [M, K] and [K, N] give [G, M, N].
Value sums_by_group(const Value& x, const Value& y, const Value& offs) {
  Builder& b = x.builder();
  const int64_t m = x.dim(0), n = y.dim(1);
  if (x.numel() == 0 || n == 0) return full(b, 0, opmath(x.dtype()), {offs.dim(0), m, n});
  const Blocks blocks = blocks_of(offs, x.dim(1));
  const Value left = pad_rows(x, 1, blocks.size), right = pad_rows(y, 0, blocks.size);
  const Value init = full(b, 0, opmath(x.dtype()), {offs.dim(0), m, n});
  const Value zero = b.scalar(0, DType::kS32);
  return over_blocks(blocks, init, [&](const Block& block, const Value& out) {
    const Dims shape = {blocks.size, n};
    const Value columns = b.dynamic_slice(left, {zero, block.start}, {m, blocks.size});
    const Value rows = b.dynamic_slice(right, {block.start, zero}, shape);
    // Both sides: what lies beyond the group may be inf or NaN.
    const Value here = b.select(inside(block, shape, 0), rows, zeros_like(rows));
    const Value there = b.select(inside(block, columns.dims(), 1), columns, zeros_like(columns));
    const Value sum = b.reshape(product(there, here, {{}, {}, {1}, {0}}), {1, m, n});
    const Values at = {block.group, zero, zero};
    return b.dynamic_update_slice(out, b.dynamic_slice(out, at, {1, m, n}) + sum, at);
  });
}

Value transposed(const Value& x) {
  Dims order = range(x.rank());
  std::swap(order[order.size() - 2], order.back());
  return x.builder().transpose(x, order);
}

Value grouped(const Value& a, const Value& b, const Value& offs) {
  require((a.rank() == 2 || a.rank() == 3) && (b.rank() == 2 || b.rank() == 3), "2 or 3 dims");
  const bool batched = a.rank() == 3 && b.rank() == 3;
  require(batched == !offs.defined(), "offs unless both have groups of their own");
  require(a.dim(-1) == b.dim(-2), "factors that fit");
  if (batched) {
    require(a.dim(0) == b.dim(0), "as many groups on both sides");
    return product(a, b, {{0}, {0}, {2}, {1}});
  }
  require(offs.rank() == 1 && offs.dim(0) > 0, "offs of one dim");
  require(offs.dtype() == DType::kS32, "offs of int32");
  for (const Value& x : {a, b}) require(x.rank() == 2 || x.dim(0) == offs.dim(0), "an end a group");
  if (b.rank() == 3) return rows_by_group(a, b, offs);
  if (a.rank() == 2) return sums_by_group(a, b, offs);
  return transposed(rows_by_group(transposed(b), transposed(a), offs));
}

Values lower_grouped_mm(Call& c) {
  const Value a = c.tensor("self"), b = c.tensor("mat2");
  require(is_float(a.dtype()) && a.dtype() == b.dtype(), "factors of one floating dtype");
  require(a.dtype() != DType::kF64, "factors of float32 or less");
  require(!c.has("bias"), "no bias");
  const Value result = grouped(a, b, c.optional_tensor("offs"));
  return {cast(result, c.dtype_arg("out_dtype").value_or(a.dtype()))};
}

// The scale of each column, one set per group, for every row: [M, N] from [G, N].
Value by_row(const Value& scales, const Value& offs, int64_t rows) {
  Builder& b = scales.builder();
  const Dims square = {rows, offs.dim(0)};
  const Value ends = b.broadcast_in_dim(cast(offs, DType::kS32), square, {1});
  const Value past = b.ge(b.iota(Type(DType::kS32, square), 0), ends);
  return take_rows(scales, reduce_sum(cast(past, DType::kS32), {1}), 0);
}

// One scale per row of self and per column of mat2, per group where they have groups.
Values lower_scaled_grouped_mm(Call& c) {
  Builder& b = c.b;
  const Value x = c.tensor("self"), y = c.tensor("mat2"), offs = c.optional_tensor("offs");
  const Value sx = c.tensor("scale_a"), sy = c.tensor("scale_b");
  require(!c.has("bias") && !c.has("scale_result"), "neither bias nor scale_result");
  require(is_float8(x.dtype()) && is_float8(y.dtype()), "float8 factors");
  require(sx.dtype() == DType::kF32 && sy.dtype() == DType::kF32, "float scales");
  const Dims dims = c.out().dims;
  const Value result = grouped(x, y, offs);
  const int64_t m = x.dim(-2), n = y.dim(-1);
  Value left, right;
  if (dims.size() == 3) {
    const Dims rows = {dims[0], m, 1}, columns = {dims[0], 1, n};
    left = b.broadcast_to(b.reshape(sx, rows), dims);
    right = b.broadcast_to(b.reshape(sy, columns), dims);
  } else if (x.rank() == 2) {
    left = b.broadcast_in_dim(b.reshape(sx, {m}), dims, {0});
    right = by_row(b.reshape(sy, {offs.dim(0), n}), offs, m);
  } else {
    left = transposed(by_row(b.reshape(sx, {offs.dim(0), m}), offs, n));
    right = b.broadcast_in_dim(b.reshape(sy, {n}), dims, {1});
  }
  return {result * left * right};
}

}  // namespace

void add_grouped_mm(Entries& t) {
  // Its Meta kernel takes bfloat16 only.
  t.push_back({.name = "_grouped_mm", .lower = lower_grouped_mm, .no_meta = true});
  t.push_back({.name = "_scaled_grouped_mm", .lower = lower_scaled_grouped_mm});
}

}  // namespace torch_tpu::ops
