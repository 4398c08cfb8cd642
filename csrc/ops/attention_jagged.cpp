// Attention within sequences of several lengths that lie one after the other in [tokens, heads, E],
// as jagged tensors hold them: _flash_attention_forward with cumulative lengths, and its backward.
// Nothing is padded to the longest. A loop over blocks of queries visits for each of them the
// blocks of keys that its sequences reach into; how many these are is known when the program runs.
#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "csrc/ops/attention.h"
#include "csrc/ops/attention_loop.h"
#include "csrc/ops/index.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

constexpr int64_t kSide = 128;

struct Jagged {
  Value query, key, value;  // [1, heads, tokens, E]
  Value scale;              // 0-d
  int64_t rows, columns;    // of a block
  Value first, last;        // s32 [tokens of the query]: the keys that a row sees, last excluded
  Value from, to;           // s32 [row blocks]: blocks of keys, the last excluded

  int64_t heads() const { return query.dim(1); }
  int64_t num_rows() const { return query.dim(2); }
  int64_t num_columns() const { return key.dim(2); }
  int64_t row_blocks() const { return blocks_of(num_rows(), rows); }
  Dims block_dims() const { return {1, heads(), rows, columns}; }
  DType wide() const { return scale.dtype(); }
};

struct Block {
  Value row, column;  // where it begins, s32
  Value visible;      // i1 of the block's dims
};

Value heads_first(const Value& x) {
  Builder& b = x.builder();
  return b.reshape(b.transpose(x, {1, 0, 2}), {1, x.dim(1), x.dim(0), x.dim(2)});
}

Value tokens_first(const Value& x) {
  Builder& b = x.builder();
  return b.transpose(b.reshape(x, {x.dim(1), x.dim(2), x.dim(3)}), {1, 0, 2});
}

void refuse_others(Call& c) {
  for (const char* name : {"cum_seq_q", "cum_seq_k"}) {
    if (!c.has(name)) throw std::invalid_argument("expected cumulative sequence lengths");
  }
  if (c.known("dropout_p") != 0) throw std::invalid_argument("expected no dropout");
  for (const char* name :
       {"window_size_left", "window_size_right", "seqused_k", "alibi_slopes", "block_table"}) {
    if (c.has(name)) throw std::invalid_argument("expected no " + std::string(name));
  }
}

// The keys that each row sees.
void find_reach(Call& c, Jagged& a) {
  Builder& b = c.b;
  const Value starts_q = b.convert(c.tensor("cum_seq_q"), DType::kS32);
  const Value starts_k = b.convert(c.tensor("cum_seq_k"), DType::kS32);
  const int64_t batch = starts_q.dim(0) - 1;
  const int64_t n = a.num_rows();
  const Value id = segment_ids(b.slice_dim(starts_q, 0, 0, batch), n);
  const Value sequence = b.maximum(id, zeros_like(id));
  const auto begin = [&](const Value& starts) { return take_rows(starts, sequence, 0); };
  const auto end = [&](const Value& starts) { return take_rows(starts, sequence + 1, 0); };
  a.first = begin(starts_k);
  a.last = end(starts_k);
  const Value position = b.iota(Type(DType::kS32, {n}), 0);
  if (c.flag("is_causal")) {  // both sequences end together
    const Value behind = b.subtract(end(starts_q), position) - 1;
    a.last = b.minimum(a.last, b.subtract(end(starts_k), behind));
  }
  // Rows after the last sequence see nothing.
  const Value inside = b.and_(b.ge(position, begin(starts_q)), b.lt(position, end(starts_q)));
  a.last = b.select(inside, b.maximum(a.last, a.first), a.first);
}

// The blocks of keys that the rows of a block reach into.
void find_blocks(Jagged& a) {
  Builder& b = a.query.builder();
  const int64_t blocks = a.row_blocks();
  const int64_t rest = blocks * a.rows - a.num_rows();
  const auto per_block = [&](const Value& x, int64_t padding) {
    return b.reshape(b.pad(x, number(b, padding), {0}, {rest}), {blocks, a.rows});
  };
  const Value nothing = b.ge(a.first, a.last);
  const int64_t n = a.num_columns();
  const Value low = b.select(nothing, b.like(a.first, n), a.first);
  const Value high = b.select(nothing, zeros_like(a.last), a.last);
  a.from = b.divide(reduce_min(per_block(low, n), {1}), full(b, a.columns, DType::kS32, {blocks}));
  const Value up = reduce_max(per_block(high, 0), {1}) + (a.columns - 1);
  a.to = b.divide(up, full(b, a.columns, DType::kS32, {blocks}));
}

Jagged jagged_of(Call& c) {
  refuse_others(c);
  Builder& b = c.b;
  Jagged a;
  a.query = heads_first(c.tensor("query"));
  a.key = heads_first(c.tensor("key"));
  a.value = heads_first(c.tensor("value"));
  const DType wide = opmath(a.query.dtype());
  a.scale = c.has("scale") ? c.scalar("scale", wide)
                           : b.scalar(1 / std::sqrt(static_cast<double>(a.query.dim(3))), wide);
  const int64_t side = target().attention_block > 0 ? target().attention_block : kSide;
  a.rows = std::min(side, a.num_rows());
  a.columns = std::min(side, a.num_columns());
  find_reach(c, a);
  find_blocks(a);
  return a;
}

Value at(const Value& x, const Value& i) {
  Builder& b = x.builder();
  return b.reshape(b.dynamic_slice(x, {i}, {1}), {});
}

// The last block of a side begins earlier where it would reach beyond the end; what it shares with
// the one before is masked.
Block block_at(const Jagged& a, const Value& i, const Value& j) {
  Builder& b = i.builder();
  const Dims dims = {a.rows, a.columns};
  const Value row = b.multiply(i, number(b, a.rows)), column = b.multiply(j, number(b, a.columns));
  Block block;
  block.row = b.minimum(row, number(b, a.num_rows() - a.rows));
  block.column = b.minimum(column, number(b, a.num_columns() - a.columns));
  const auto of_rows = [&](const Value& x) {
    return b.broadcast_in_dim(b.dynamic_slice(x, {block.row}, {a.rows}), dims, {0});
  };
  const Value key = b.add(b.iota(Type(DType::kS32, dims), 1), b.broadcast_to(block.column, dims));
  Value visible = b.and_(b.ge(key, of_rows(a.first)), b.lt(key, of_rows(a.last)));
  visible = b.and_(visible, not_before(block.row, row, 0, dims));
  visible = b.and_(visible, not_before(block.column, column, 1, dims));
  block.visible = b.broadcast_to(visible, a.block_dims());
  return block;
}

// Runs `body` on each block that holds something, with the values carried so far.
Values for_each_block(const Jagged& a, const Values& inits,
                      const std::function<Values(const Block&, const Values&)>& body) {
  Builder& b = a.query.builder();
  const Value zero = number(b, 0), one = number(b, 1), blocks = number(b, a.row_blocks());
  const Value top = number(b, a.row_blocks() - 1);
  const auto rows = [&](const Values& v) -> Values {
    const Value i = v[0];
    const auto columns = [&](const Values& w) -> Values {
      Values out = {b.add(w[0], one)};
      const Values results = body(block_at(a, i, w[0]), Values(w.begin() + 1, w.end()));
      out.insert(out.end(), results.begin(), results.end());
      return out;
    };
    const Value end = at(a.to, b.minimum(i, top));
    Values carried = v;
    carried[0] = at(a.from, b.minimum(i, top));
    Values out = b.while_loop(
        carried, [&](const Values& w) -> Values { return {b.lt(w[0], end)}; }, columns);
    out[0] = b.add(i, one);
    return out;
  };
  Values carried = {zero};
  carried.insert(carried.end(), inits.begin(), inits.end());
  const Values done =
      b.while_loop(carried, [&](const Values& v) -> Values { return {b.lt(v[0], blocks)}; }, rows);
  return Values(done.begin() + 1, done.end());
}

Value block_scores(const Jagged& a, const Block& block, const Value& query, const Value& key) {
  Builder& b = query.builder();
  const Value scores =
      times_scalar(b.reshape(head_product(query, key, 3, 3), a.block_dims()), a.scale);
  return b.select(block.visible, scores, b.like(scores, -kInfinity));
}

Slice rows_of(const Jagged& a, const Block& block) { return {block.row, 2, a.rows}; }
Slice columns_of(const Jagged& a, const Block& block) { return {block.column, 2, a.columns}; }

// A block holds tokens of several sequences, and a weight of 0 times NaN is NaN: what is not finite
// is left out of a product over a block, and comes back as NaN where it is visible.
Value is_finite(const Value& x) {
  Builder& b = x.builder();
  return b.lt(b.abs(x), b.like(x, kInfinity));
}

Value finite(const Value& x) { return x.builder().select(is_finite(x), x, zeros_like(x)); }

// Per row of x [1, H, n, D] as [1, H, n, 1]: 1 if it has something that is not finite.
Value spoilt(const Value& x) {
  Builder& b = x.builder();
  const Value bad = b.select(is_finite(x), zeros_like(x), ones_like(x));
  Dims dims = x.dims();
  dims[3] = 1;
  return b.reshape(reduce_max_loose(bad, {3}), dims);
}

// NaN where `count` [1, H, n, 1] is not 0, else 0.
Value poison(const Value& count, const Dims& dims) {
  Builder& b = count.builder();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Value rows =
      b.select(b.gt(count, zeros_like(count)), b.like(count, nan), zeros_like(count));
  return b.broadcast_to(rows, dims);
}

AttentionOut attend(const Jagged& a) {
  Builder& b = a.query.builder();
  const Dims row_dims = {1, a.heads(), a.num_rows()};
  const Dims out_dims = {1, a.heads(), a.num_rows(), a.value.dim(3)};
  const Dims part_dims = {1, a.heads(), a.rows, a.value.dim(3)};
  const auto body = [&](const Block& block, const Values& v) -> Values {
    const Slice rows = rows_of(a, block), columns = columns_of(a, block);
    const Value scores = block_scores(a, block, rows.of(a.query), columns.of(a.key));
    const Softmax soft = with_block(scores, rows.of(v[0]), rows.of(v[1]));
    const Value used = cast(soft.weights, a.value.dtype());
    const Value value = columns.of(a.value);
    const Value mixed = b.reshape(head_product(used, finite(value), 3, 2), part_dims);
    const Value seen = cast(block.visible, value.dtype());
    const Value count =
        b.reshape(head_product(seen, spoilt(value), 3, 2), {1, a.heads(), a.rows, 1});
    const Value total =
        rows.of(v[2]) * over_last(soft.fade, part_dims) + mixed + poison(count, part_dims);
    return {rows.put(v[0], soft.max), rows.put(v[1], soft.sum), rows.put(v[2], total)};
  };
  const Values done =
      for_each_block(a,
                     {full(b, -kInfinity, a.wide(), row_dims), full(b, 0, a.wide(), row_dims),
                      full(b, 0, a.wide(), out_dims)},
                     body);
  const Value& sum = done[1];
  const Value divisor = b.select(b.eq(sum, zeros_like(sum)), ones_like(sum), sum);
  return {done[2] / over_last(divisor, out_dims), b.log(sum) + finite_shift(done[0])};
}

bool is_empty(Call& c) {
  return c.tensor("query").numel() == 0 || c.tensor("key").numel() == 0 ||
         c.tensor("value").numel() == 0 || c.tensor("cum_seq_q").dim(0) < 2;
}

Values lower_forward(Call& c) {
  Builder& b = c.b;
  Values out;
  for (size_t i = 0; i < c.num_outputs(); ++i) {
    out.push_back(full(b, 0, c.out(i).dtype, c.out(i).dims));
  }
  if (is_empty(c)) return out;
  const AttentionOut done = attend(jagged_of(c));
  out[0] = tokens_first(done.out);
  out[1] = b.reshape(done.logsumexp, c.out(1).dims);
  return out;
}

Values lower_backward(Call& c) {
  Builder& b = c.b;
  if (is_empty(c)) {
    Values zeros;
    for (size_t i = 0; i < 3; ++i) zeros.push_back(full(b, 0, c.out(i).dtype, c.out(i).dims));
    return zeros;
  }
  const Jagged a = jagged_of(c);
  const DType wide = a.wide(), narrow = a.value.dtype();
  const Dims dims = a.block_dims();
  const Value grad_out = heads_first(c.tensor("grad_out"));
  const Dims row_dims = {1, a.heads(), a.num_rows()};
  // The saved one is f32, too coarse for f64.
  const Value shift =
      finite_shift(wide == DType::kF64 ? attend(a).logsumexp
                                       : b.reshape(cast(c.tensor("logsumexp"), wide), row_dims));
  const Value mean =
      reduce_sum(cast(grad_out, wide) * cast(heads_first(c.tensor("out")), wide), {3});
  const auto body = [&](const Block& block, const Values& v) -> Values {
    const Slice rows = rows_of(a, block), columns = columns_of(a, block);
    const Value query = rows.of(a.query), key = columns.of(a.key), value = columns.of(a.value);
    const Value grad = rows.of(grad_out);
    const Value scores = block_scores(a, block, query, key);
    const Value raw = b.exponential(scores - over_last(rows.of(shift), dims));
    const Value weights = b.select(block.visible, raw, zeros_like(raw));  // the shift may be NaN
    const Value dw = b.reshape(head_product(grad, value, 3, 3), dims);
    const Value change = weights * (dw - over_last(rows.of(mean), dims));
    const Value ds = cast(b.select(block.visible, change, zeros_like(change)), narrow);
    const Dims part = {1, a.heads(), a.rows, a.query.dim(3)};
    const Value seen = cast(block.visible, narrow);
    const Value for_value =
        transposed_head_product(cast(weights, narrow), finite(grad), value.dim(1));
    const Value count = transposed_head_product(seen, spoilt(grad), value.dim(1));
    // Where a key or a query is not finite, ds is NaN wherever it is visible.
    return {rows.add(v[0], b.reshape(head_product(ds, finite(key), 3, 2), part)),
            columns.add(v[1], transposed_head_product(ds, finite(query), key.dim(1))),
            columns.add(v[2], for_value + poison(count, for_value.dims()))};
  };
  const Values done =
      for_each_block(a,
                     {full(b, 0, wide, a.query.dims()), full(b, 0, wide, a.key.dims()),
                      full(b, 0, wide, a.value.dims())},
                     body);
  return {tokens_first(times_scalar(done[0], a.scale)),
          tokens_first(times_scalar(done[1], a.scale)), tokens_first(done[2])};
}

}  // namespace

void add_attention_jagged(Entries& t) {
  t.push_back({.name = "_flash_attention_forward",
               .lower = lower_forward,
               .keyed = {"dropout_p"},
               .internal = true});
  t.push_back({.name = "_flash_attention_backward",
               .lower = lower_backward,
               .keyed = {"dropout_p"},
               .internal = true});
}

}  // namespace torch_tpu::ops
