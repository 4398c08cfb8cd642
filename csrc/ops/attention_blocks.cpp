// Attention by a loop over blocks of the scores, so that they never exist as a whole. The forward
// keeps a running maximum and sum per row and rescales what it has when the maximum grows; the
// backward makes each block again from the saved logsumexp. Blocks that causal attention cannot see
// are left out of the loop, whose trip count is a constant: compilers do better with that.
#include <algorithm>
#include <functional>

#include "csrc/ops/attention.h"
#include "csrc/ops/attention_loop.h"
#include "csrc/ops/helpers.h"

namespace torch_tpu::ops {
namespace {

constexpr int64_t kMaxSide = 512;
constexpr int64_t kMinSide = 128;
// Of a block, over all batches and heads: what a device computes on without waiting for memory.
constexpr int64_t kMaxScores = int64_t{1} << 23;

// How the scores are cut. Where the last block of a side would reach beyond the end, it begins
// earlier instead, and what it shares with the block before is masked.
struct Grid {
  Dims all;               // of the scores
  int64_t rows, columns;  // of a block
  int64_t row_blocks, column_blocks;
  bool causal;

  // Blocks of row `i` of the grid that are visible.
  int64_t visible(int64_t i) const {
    if (!causal) return column_blocks;
    return std::min(column_blocks, ((i + 1) * rows - 1) / columns + 1);
  }
  int64_t count() const {
    int64_t n = 0;
    for (int64_t i = 0; i < row_blocks; ++i) n += visible(i);
    return n;
  }
  bool ragged_rows() const { return all[2] % rows != 0; }
  bool ragged_columns() const { return all[3] % columns != 0; }
  Dims block_dims() const { return {all[0], all[1], rows, columns}; }
};

Grid grid_of(const Attention& a) {
  Grid g;
  g.all = a.score_dims();
  g.causal = a.causal;
  g.rows = g.columns = target().attention_block;
  if (g.rows == 0) {
    g.rows = std::min(kMaxSide, g.all[2]);
    g.columns = std::min(kMaxSide, g.all[3]);
    const int64_t heads = g.all[0] * g.all[1];
    while (heads * g.rows * g.columns > kMaxScores && std::max(g.rows, g.columns) > kMinSide) {
      int64_t& longer = g.rows >= g.columns ? g.rows : g.columns;
      longer = (longer + 1) / 2;
    }
  }
  g.rows = std::min(g.rows, g.all[2]);
  g.columns = std::min(g.columns, g.all[3]);
  g.row_blocks = blocks_of(g.all[2], g.rows);
  g.column_blocks = blocks_of(g.all[3], g.columns);
  return g;
}

// The block of one turn of the loop.
struct Block {
  Value row, column;  // where it begins, s32
  Value visible;      // i1 of the block's dims; undefined: all of it is
};

Block block_at(const Grid& g, const Value& i, const Value& j) {
  Builder& b = i.builder();
  const auto first_of = [&](const Value& index, int64_t side) {
    return b.multiply(index, number(b, side));
  };
  const Value row = first_of(i, g.rows), column = first_of(j, g.columns);
  Block block = {row, column, {}};
  const Dims dims = {g.rows, g.columns};
  const auto hide = [&](const Value& visible) {
    block.visible = block.visible ? b.and_(block.visible, visible) : visible;
  };
  if (g.ragged_rows()) {
    block.row = b.minimum(row, number(b, g.all[2] - g.rows));
    hide(not_before(block.row, row, 0, dims));
  }
  if (g.ragged_columns()) {
    block.column = b.minimum(column, number(b, g.all[3] - g.columns));
    hide(not_before(block.column, column, 1, dims));
  }
  if (g.causal) {
    const Type type(DType::kS32, dims);
    const Value r = b.add(b.iota(type, 0), b.broadcast_to(block.row, dims));
    const Value c = b.add(b.iota(type, 1), b.broadcast_to(block.column, dims));
    hide(b.ge(r, c));
  }
  if (block.visible) block.visible = b.broadcast_to(block.visible, g.block_dims());
  return block;
}

// Runs `body` on each visible block with the values carried so far; it returns the new ones.
Values for_each_block(Builder& b, const Grid& g, const Values& inits,
                      const std::function<Values(const Block&, const Values&)>& body) {
  const Value zero = number(b, 0), one = number(b, 1);
  Values carried = {zero, zero, zero};  // turn, and position in the grid
  carried.insert(carried.end(), inits.begin(), inits.end());
  const Value turns = number(b, g.count());
  const auto more = [&](const Values& v) -> Values { return {b.lt(v[0], turns)}; };
  const auto turn = [&](const Values& v) -> Values {
    const Value& i = v[1];
    const Value next = b.add(v[2], one);
    Value visible = number(b, g.column_blocks);
    if (g.causal) {
      const Value last = b.subtract(b.multiply(b.add(i, one), number(b, g.rows)), one);
      visible = b.minimum(visible, b.add(b.divide(last, number(b, g.columns)), one));
    }
    const Value row_done = b.ge(next, visible);
    Values out = {b.add(v[0], one), b.select(row_done, b.add(i, one), i),
                  b.select(row_done, zero, next)};
    const Values results = body(block_at(g, i, v[2]), Values(v.begin() + 3, v.end()));
    out.insert(out.end(), results.begin(), results.end());
    return out;
  };
  const Values done = b.while_loop(carried, more, turn);
  return Values(done.begin() + 3, done.end());
}

Slice rows_of(const Grid& g, const Block& block) { return {block.row, 2, g.rows}; }
Slice columns_of(const Grid& g, const Block& block) { return {block.column, 2, g.columns}; }

// The part of the bias that a block sees: dims of size 1 stay.
struct BiasPart {
  Values starts;
  Dims sizes;
};

BiasPart bias_part(const Grid& g, const Block& block, const Dims& dims) {
  const Value zero = number(block.row.builder(), 0);
  const bool rows = dims[2] != 1, columns = dims[3] != 1;
  return {{zero, zero, rows ? block.row : zero, columns ? block.column : zero},
          {dims[0], dims[1], rows ? g.rows : 1, columns ? g.columns : 1}};
}

// Scaled, biased, masked.
Value block_scores(const Attention& a, const Grid& g, const Block& block, const Value& query,
                   const Value& key) {
  Builder& b = query.builder();
  const Dims dims = g.block_dims();
  Value scores = times_scalar(b.reshape(head_product(query, key, 3, 3), dims), a.scale);
  if (a.bias) {
    const BiasPart part = bias_part(g, block, a.bias.dims());
    const Value bias = b.dynamic_slice(a.bias, part.starts, part.sizes);
    scores = scores + b.broadcast_to(cast(bias, a.wide()), dims);
  }
  if (block.visible) scores = b.select(block.visible, scores, b.like(scores, -kInfinity));
  return scores;
}

Value dropped_block(const Value& x, const Dropout& dropout, const Grid& g, const Block& block) {
  if (!dropout.state) return x;
  return dropped(x, dropout, g.all, {Value(), Value(), block.row, block.column});
}

}  // namespace

AttentionOut attention_by_blocks(const Attention& a, const Dropout& dropout) {
  Builder& b = a.query.builder();
  const Grid g = grid_of(a);
  const DType wide = a.wide();
  const Dims out_dims = a.out_dims();
  const Dims row_dims = {g.all[0], g.all[1], g.all[2]};
  const Dims part_dims = {g.all[0], g.all[1], g.rows, out_dims[3]};

  const auto body = [&](const Block& block, const Values& v) -> Values {
    const Slice rows = rows_of(g, block), columns = columns_of(g, block);
    const Value scores = block_scores(a, g, block, rows.of(a.query), columns.of(a.key));
    const Softmax soft = with_block(scores, rows.of(v[0]), rows.of(v[1]));
    const Value used = cast(dropped_block(soft.weights, dropout, g, block), a.value.dtype());
    const Value mixed = b.reshape(head_product(used, columns.of(a.value), 3, 2), part_dims);
    const Value total = rows.of(v[2]) * over_last(soft.fade, part_dims) + mixed;
    return {rows.put(v[0], soft.max), rows.put(v[1], soft.sum), rows.put(v[2], total)};
  };
  const Values done = for_each_block(
      b, g,
      {full(b, -kInfinity, wide, row_dims), full(b, 0, wide, row_dims), full(b, 0, wide, out_dims)},
      body);
  const Value& sum = done[1];
  const Value divisor = b.select(b.eq(sum, zeros_like(sum)), ones_like(sum), sum);
  return {done[2] / over_last(divisor, out_dims), b.log(sum) + finite_shift(done[0])};
}

Values attention_grad_by_blocks(const Attention& a, const Dropout& dropout,
                                const AttentionGrad& grad) {
  Builder& b = a.query.builder();
  const Grid g = grid_of(a);
  const DType wide = a.wide(), narrow = a.value.dtype();
  const Dims dims = g.block_dims();
  const Dims query_dims = {g.all[0], g.all[1], g.rows, a.query.dim(3)};
  // The saved one is f32, too coarse for f64.
  const Value lse =
      wide == DType::kF64 ? attention_by_blocks(a, dropout).logsumexp : cast(grad.logsumexp, wide);
  const Value shift = finite_shift(lse);
  const Value mean = reduce_sum(cast(grad.grad_out, wide) * cast(grad.out, wide), {3});

  Dims places(4, -1);  // of the gradients among what is carried
  Values inits;
  const auto carry = [&](size_t i, const Value& like) {
    if (!grad.wants[i] || !like) return;
    places[i] = static_cast<int64_t>(inits.size());
    inits.push_back(full(b, 0, wide, like.dims()));
  };
  carry(0, a.query);
  carry(1, a.key);
  carry(2, a.value);
  carry(3, a.bias);
  if (inits.empty()) return Values(4);

  const auto body = [&](const Block& block, const Values& v) -> Values {
    const Slice rows = rows_of(g, block), columns = columns_of(g, block);
    const Value query = rows.of(a.query), key = columns.of(a.key), value = columns.of(a.value);
    const Value grad_out = rows.of(grad.grad_out);
    const Value scores = block_scores(a, g, block, query, key);
    const Value weights = b.exponential(scores - over_last(rows.of(shift), dims));
    Values out = v;
    if (places[2] >= 0) {
      const Value used = cast(dropped_block(weights, dropout, g, block), narrow);
      const Value part = transposed_head_product(used, grad_out, value.dim(1));
      out[places[2]] = columns.add(v[places[2]], part);
    }
    const Value dw = b.reshape(head_product(grad_out, value, 3, 3), dims);
    const Value ds =
        weights * (dropped_block(dw, dropout, g, block) - over_last(rows.of(mean), dims));
    const Value ds_narrow = cast(ds, narrow);
    if (places[0] >= 0) {
      const Value part = b.reshape(head_product(ds_narrow, key, 3, 2), query_dims);
      out[places[0]] = rows.add(v[places[0]], part);
    }
    if (places[1] >= 0) {
      const Value part = transposed_head_product(ds_narrow, query, key.dim(1));
      out[places[1]] = columns.add(v[places[1]], part);
    }
    if (places[3] >= 0) {
      const Value& sum = v[places[3]];
      const BiasPart part = bias_part(g, block, sum.dims());
      const Value before = b.dynamic_slice(sum, part.starts, part.sizes);
      out[places[3]] = b.dynamic_update_slice(sum, before + sum_to(ds, part.sizes), part.starts);
    }
    return out;
  };
  const Values done = for_each_block(b, g, inits, body);
  Values grads(4);
  for (size_t i = 0; i < 4; ++i) {
    if (places[i] >= 0) grads[i] = done[places[i]];
  }
  for (size_t i : {0, 1}) {
    if (grads[i]) grads[i] = times_scalar(grads[i], a.scale);
  }
  return grads;
}

}  // namespace torch_tpu::ops
