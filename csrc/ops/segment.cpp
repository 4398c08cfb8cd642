// Runs of rows, given by their lengths: segment_reduce, repeat_interleave.
#include <limits>
#include <stdexcept>
#include <string>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/scan.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// Rows [batch * n, rest], each in one of batch * count segments (-1: in none).
struct Segments {
  Dims batch, rest;
  int64_t n = 0, count = 0;
  Value ids;      // s32 [batch * n]
  Value lengths;  // s32 [batch * count]
  Dims rows_shape() const { return shape(n); }
  Dims segments_shape() const { return shape(count); }

 private:
  Dims shape(int64_t middle) const {
    Dims dims = {stablehlo::product(batch) * middle};
    dims.insert(dims.end(), rest.begin(), rest.end());
    return dims;
  }
};

Segments segments_of(Call& c) {
  Builder& b = c.b;
  const Value data = c.tensor("data");
  const Value lengths = c.optional_tensor("lengths");
  const Value offsets = c.optional_tensor("offsets");
  if (!lengths && !offsets) throw std::invalid_argument("expected lengths or offsets");
  const Value given = lengths ? lengths : offsets;
  const int64_t axis = given.rank() - 1;
  Segments s;
  s.n = data.dim(axis);
  s.count = given.dim(axis) - (lengths ? 0 : 1);
  s.batch.assign(data.dims().begin(), data.dims().begin() + axis);
  s.rest.assign(data.dims().begin() + axis + 1, data.dims().end());
  const int64_t batch = stablehlo::product(s.batch);
  const Value numbers = b.reshape(cast(given, DType::kS32), {batch, given.dim(axis)});
  Value ends;
  if (lengths) {
    s.lengths = numbers;
    ends = s.count == 0 ? numbers : scan(numbers, 1, Reduction::kAdd);
  } else {
    ends = b.slice_dim(numbers, 1, 1, s.count + 1);
    s.lengths = b.subtract(ends, b.slice_dim(numbers, 1, 0, s.count));
  }
  if (s.count > 0 && lengths && !c.flag_or("unsafe", true)) {
    c.check_range(numbers, 0, std::numeric_limits<int64_t>::max(),
                  "lengths contains negative value!");
    c.check_range(b.slice_dim(ends, 1, s.count - 1, s.count), s.n, s.n + 1,
                  "segment_reduce(): Expected all rows of lengths along axis to sum to "
                  "data.size(lengths.dim()-1) "
                  "when !unsafe.");
  }
  const Dims rows = {batch, s.n};
  if (s.count == 0 || s.n == 0 || batch == 0) {
    s.ids = full(b, -1, DType::kS32, {batch * s.n});
  } else {
    // Counted over all batches at once; what lies outside its batch's segments is in none.
    const Value starts = b.subtract(ends, s.lengths);
    const Type per_segment(DType::kS32, {batch, s.count});
    const Value base = b.iota(per_segment, 0) * s.n;
    // A start at the end of a batch is an empty segment there, and must not count in the next one.
    const Value at = b.minimum(starts, b.like(starts, s.n - 1));
    const Value marks = b.convert(b.lt(starts, b.like(starts, s.n)), DType::kS32);
    const Value counted = put_rows(full(b, 0, DType::kS32, {batch * s.n}),
                                   b.reshape(b.add(base, at), {batch * s.count}),
                                   b.reshape(marks, {batch * s.count}), 0, Combine::kAdd);
    const Value local = scan(b.reshape(counted, rows), 1, Reduction::kAdd) - 1;
    const Type per_row(DType::kS32, rows);
    const auto spread = [&](const Value& column) { return b.broadcast_to(column, rows); };
    const Value position = b.iota(per_row, 1);
    const Value inside = b.and_(b.ge(position, spread(b.slice_dim(starts, 1, 0, 1))),
                                b.lt(position, spread(b.slice_dim(ends, 1, s.count - 1, s.count))));
    const Value id = b.add(local, b.iota(per_row, 0) * s.count);
    s.ids = b.reshape(b.select(inside, id, b.like(id, -1)), {batch * s.n});
  }
  s.lengths = b.reshape(s.lengths, {batch * s.count});
  return s;
}

std::string reduction_of(Call& c) {
  const std::string name = c.string("reduce");
  if (name == "amax") return "max";
  if (name == "amin") return "min";
  for (const char* known : {"sum", "mean", "max", "min", "prod"}) {
    if (name == known && is_float(c.dtype("data"))) return name;
  }
  throw std::invalid_argument("expected floats and one of sum, mean, max, min, prod");
}

double identity_of(const std::string& reduce) {
  const double inf = std::numeric_limits<double>::infinity();
  if (reduce == "max") return -inf;
  if (reduce == "min") return inf;
  return reduce == "prod" ? 1 : 0;
}

Combine combine_of(const std::string& reduce) {
  if (reduce == "max") return Combine::kMax;
  if (reduce == "min") return Combine::kMin;
  return reduce == "prod" ? Combine::kMul : Combine::kAdd;
}

Value initial_of(Call& c, const std::string& reduce, DType t) {
  return c.has("initial") ? c.scalar("initial", t) : c.b.scalar(identity_of(reduce), t);
}

// One number a segment, over the other dimensions of the rows.
Value per_segment(const Segments& s, const Value& x, const Dims& shape) {
  return x.builder().broadcast_in_dim(x, shape, {0});
}

Values lower_segment_reduce(Call& c) {
  Builder& b = c.b;
  const Value data = c.tensor("data");
  const Segments s = segments_of(c);
  const std::string reduce = reduction_of(c);
  const DType t = opmath(data.dtype());
  const Value rows = b.reshape(b.convert(data, t), s.rows_shape());
  const Dims shape = s.segments_shape();
  const Value start = b.broadcast_to(initial_of(c, reduce, t), shape);
  Value result = put_rows(start, s.ids, rows, 0, combine_of(reduce));
  if (reduce == "mean") {
    const Value length = per_segment(s, s.lengths, shape);
    const Value none = b.eq(length, zeros_like(length));
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const Value empty = c.has("initial") ? result : b.like(result, nan);
    result =
        b.select(none, empty, b.divide(result, b.convert(b.maximum(length, ones_like(length)), t)));
  }
  return {b.reshape(result, c.out().dims)};
}

// Sums over segments, given back to each row.
Value sum_back(const Segments& s, const Value& rows) {
  Builder& b = rows.builder();
  const Value sums =
      put_rows(full(b, 0, rows.dtype(), s.segments_shape()), s.ids, rows, 0, Combine::kAdd);
  return take_rows(sums, b.maximum(s.ids, zeros_like(s.ids)), 0);
}

// The product of the others: the whole divided by the element, unless that is 0 or NaN.
Value product_of_others(Call& c, const Segments& s, const Value& rows, const Value& output) {
  Builder& b = c.b;
  const DType t = rows.dtype();
  const Value nan = b.ne(rows, rows);
  const Value zero = b.eq(rows, zeros_like(rows));
  const Value odd = b.or_(nan, zero);
  const Value start = b.broadcast_to(initial_of(c, "prod", t), s.segments_shape());
  const Value rest =
      take_rows(put_rows(start, s.ids, b.select(odd, ones_like(rows), rows), 0, Combine::kMul),
                b.maximum(s.ids, zeros_like(s.ids)), 0);
  const auto others = [&](const Value& which) {
    const Value one = b.convert(which, DType::kS32);
    return b.gt(b.subtract(sum_back(s, one), one), zeros_like(one));
  };
  Value without_it = b.select(others(zero), zeros_like(rows), rest);
  without_it =
      b.select(others(nan), b.like(rows, std::numeric_limits<double>::quiet_NaN()), without_it);
  return b.select(odd, without_it, b.divide(output, rows));
}

Values lower_segment_reduce_backward(Call& c) {
  Builder& b = c.b;
  const Value data = c.tensor("data");
  const Segments s = segments_of(c);
  const std::string reduce = reduction_of(c);
  const DType t = opmath(data.dtype());
  const Dims shape = s.segments_shape();
  if (data.numel() == 0 || stablehlo::product(shape) == 0) return {full(b, 0, t, data.dims())};
  const Value rows = b.reshape(b.convert(data, t), s.rows_shape());
  const Value at = b.maximum(s.ids, zeros_like(s.ids));
  const auto to_rows = [&](const Value& x) {
    return take_rows(b.reshape(b.convert(x, t), shape), at, 0);
  };
  Value grad = to_rows(c.tensor("grad"));
  if (reduce == "mean") {
    const Value length = b.convert(per_segment(s, s.lengths, shape), t);
    grad = b.divide(grad, take_rows(length, at, 0));
  } else if (reduce == "prod") {
    grad = b.multiply(grad, product_of_others(c, s, rows, to_rows(c.tensor("output"))));
  } else if (reduce != "sum") {  // shared by all that reach the extreme, or are NaN
    const Value reached = b.or_(b.eq(rows, to_rows(c.tensor("output"))), b.ne(rows, rows));
    const Value sharers = sum_back(s, b.convert(reached, t));
    grad = b.select(reached, b.divide(grad, sharers), zeros_like(grad));
  }
  const Value in_segment = b.ge(s.ids, zeros_like(s.ids));
  grad = b.select(b.broadcast_in_dim(in_segment, grad.dims(), {0}), grad, zeros_like(grad));
  return {b.reshape(grad, data.dims())};
}

// With the size known; the caller finds it where it is not given.
Values lower_repeat_interleave(Call& c) {
  Builder& b = c.b;
  const Value repeats = c.tensor("repeats");
  const int64_t size = c.integer("output_size");
  if (repeats.numel() == 0 || size == 0) return {full(b, 0, repeats.dtype(), {size})};
  const Value wide = cast(repeats, DType::kS64);
  c.check_range(wide, 0, std::numeric_limits<int64_t>::max(), "repeats can not be negative");
  c.check_range(reduce_sum(wide, {0}), size, size + 1,
                "allocated size does not match required size");
  const Value ends = scan(wide, 0, Reduction::kAdd);
  return {segment_ids(b.subtract(ends, wide), size)};
}

}  // namespace

void add_segment(Entries& t) {
  t.push_back({.name = "segment_reduce", .lower = lower_segment_reduce});
  t.push_back({.name = "_segment_reduce_backward", .lower = lower_segment_reduce_backward});
  t.push_back(
      {.name = "repeat_interleave.Tensor", .lower = lower_repeat_interleave, .internal = true});
}

}  // namespace torch_tpu::ops
