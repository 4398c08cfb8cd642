// Order statistics: sort, topk, kthvalue, median, mode, searchsorted, bucketize. NaN counts as
// larger than everything, as in PyTorch.
#include "csrc/ops/sort.h"

#include <limits>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/scan.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

constexpr int64_t kLowWord = 0xffffffff;
constexpr int64_t kMagnitude = std::numeric_limits<int32_t>::max();

Value is_nan(const Value& x) { return x.builder().ne(x, x); }

// --- sort -------------------------------------------------------------------------------------

bool fits_one_word(DType t) {
  return t != DType::kF64 && t != DType::kU32 && (dtype_bytes(t) <= 4);
}

// s32 that compares as the f32 does: negative floats have the order of their magnitude reversed.
// All NaN become the largest value and -0 becomes 0.
Value float_key(const Value& x) {
  Builder& b = x.builder();
  const Value bits = b.bitcast_convert(x, Type(DType::kS32, x.dims()));
  const Value largest = b.like(bits, kMagnitude);
  Value key = b.select(b.lt(bits, zeros_like(bits)), b.xor_(bits, largest), bits);
  key = b.select(b.eq(x, zeros_like(x)), zeros_like(key), key);
  return b.select(is_nan(x), largest, key);
}

Value float_of_key(const Value& key) {
  Builder& b = key.builder();
  const Value bits =
      b.select(b.lt(key, zeros_like(key)), b.xor_(key, b.like(key, kMagnitude)), key);
  return b.bitcast_convert(bits, Type(DType::kF32, key.dims()));
}

// Sorts one s64 per element: the key in the high word, the position in the low one, which also
// makes the order stable. XLA has a fast path for a single operand with a plain comparison; a
// (value, index) sort calls the comparator through a pointer and takes five times as long.
Sorted sort_packed(const Value& x, int64_t dim, bool descending) {
  Builder& b = x.builder();
  const bool floating = is_float(x.dtype());
  const Value wide = floating ? cast(x, DType::kF32) : x;
  Value key = cast(floating ? float_key(wide) : wide, DType::kS64);
  if (descending) {
    key = b.not_(key);
  }
  Value low = b.shift_left(b.iota(Type(DType::kS64, x.dims()), dim), b.like(key, 1));
  if (floating) {  // the lowest bit remembers the sign of zero, which the key has lost
    const Value sign = b.lt(b.bitcast_convert(wide, Type(DType::kS32, x.dims())),
                            full(b, 0, DType::kS32, x.dims()));
    const Value negative_zero = b.and_(b.eq(wide, zeros_like(wide)), sign);
    low = b.or_(low, b.convert(negative_zero, DType::kS64));
  }
  const Value packed = b.or_(b.shift_left(key, b.like(key, 32)), low);
  const Value sorted = b.sort({packed}, dim, /*stable=*/false, [&](const Values& args) {
    return Values{b.lt(args[0], args[1])};
  })[0];

  const Value position = b.and_(sorted, b.like(sorted, kLowWord));
  const Value indices =
      b.convert(b.shift_right_logical(position, b.like(position, 1)), DType::kS32);
  key = b.shift_right_arithmetic(sorted, b.like(sorted, 32));
  if (descending) {
    key = b.not_(key);
  }
  if (!floating) {
    return {cast(key, x.dtype()), indices};
  }
  Value values = float_of_key(b.convert(key, DType::kS32));
  const Value negative_zero = cast(b.and_(position, b.like(position, 1)), DType::kBool);
  values = b.select(negative_zero, -values, values);
  return {cast(values, x.dtype()), indices};
}

Sorted sort_pairs(const Value& x, int64_t dim, bool descending) {
  Builder& b = x.builder();
  const bool floating = is_float(x.dtype());
  const Values sorted = b.sort({x, b.iota(Type(DType::kS32, x.dims()), dim)}, dim, /*stable=*/true,
                               [&](const Values& args) {
                                 const Value& before = descending ? args[1] : args[0];
                                 const Value& after = descending ? args[0] : args[1];
                                 Value less = b.lt(before, after);
                                 if (floating) {
                                   less = b.or_(less, b.and_(is_nan(after), b.eq(before, before)));
                                 }
                                 return Values{less};
                               });
  return {sorted[0], sorted[1]};
}

}  // namespace

Sorted sort_dim(const Value& x, int64_t dim, bool descending) {
  if (x.numel() == 0 || x.dim(dim) == 1) {
    return {x, full(x.builder(), 0, DType::kS32, x.dims())};
  }
  return fits_one_word(x.dtype()) ? sort_packed(x, dim, descending)
                                  : sort_pairs(x, dim, descending);
}

namespace {

Value at_least_1d(const Value& x) { return x.rank() == 0 ? x.builder().reshape(x, {1}) : x; }

// Puts (values, indices) into the shapes PyTorch wants: keepdim or not, 0-d inputs.
Values in_output_shape(Call& c, const Sorted& s) {
  return {c.b.reshape(s.values, c.out(0).dims),
          c.b.reshape(cast(s.indices, DType::kS64), c.out(1).dims)};
}

Values lower_sort(Call& c) {
  const Value x = c.tensor("self");
  const int64_t dim = wrap_dim(c.integer("dim"), x.rank());
  return in_output_shape(c, sort_dim(at_least_1d(x), dim, c.flag("descending")));
}

// --- selections from the sorted order ---------------------------------------------------------

Sorted slice_sorted(const Sorted& s, int64_t dim, int64_t start, int64_t limit) {
  Builder& b = s.values.builder();
  return {b.slice_dim(s.values, dim, start, limit), b.slice_dim(s.indices, dim, start, limit)};
}

// One element per row, at a position known only at run time (dim has size 1 in `position`).
Sorted element(const Sorted& s, int64_t dim, const Value& position) {
  Builder& b = s.values.builder();
  const Dims& dims = s.values.dims();
  const Value here = b.eq(b.iota(Type(DType::kS32, dims), dim), b.broadcast_to(position, dims));
  const auto pick = [&](const Value& x) {
    return reduce_sum(b.select(here, x, zeros_like(x)), {dim}, true);
  };
  return {pick(s.values), pick(s.indices)};
}

bool exact_in_f32(DType t) { return t == DType::kF32 || t == DType::kBool || dtype_bytes(t) <= 2; }

// XLA's top_k orders floats by their bits: -NaN, -inf ... inf, NaN.
Sorted top_k(const Value& x, int64_t k, bool largest) {
  Builder& b = x.builder();
  Value keys = cast(x, DType::kF32);
  const auto nan_of_bits = [&](int64_t bits) {
    return b.bitcast_convert(full(b, bits, DType::kS32, x.dims()), keys.type());
  };
  if (is_float(x.dtype())) {
    keys = b.select(is_nan(keys), nan_of_bits(largest ? kMagnitude : -1), largest ? keys : -keys);
  } else if (!largest) {
    keys = -keys;
  }
  const Values found = b.top_k(keys, k);
  return {cast(largest ? found[0] : -found[0], x.dtype()), found[1]};
}

Values lower_topk(Call& c) {
  Builder& b = c.b;
  const Value x = at_least_1d(c.tensor("self"));
  const int64_t k = c.integer("k");
  const int64_t dim = wrap_dim(c.integer("dim"), x.rank());
  const bool largest = c.flag("largest");
  if (k == 0 || x.numel() == 0) {
    return {full(b, 0, c.out(0).dtype, c.out(0).dims), full(b, 0, DType::kS64, c.out(1).dims)};
  }
  if (!exact_in_f32(x.dtype())) {
    return in_output_shape(c, slice_sorted(sort_dim(x, dim, largest), dim, 0, k));
  }
  Dims swap = range(x.rank());
  std::swap(swap[dim], swap.back());
  const Sorted found = top_k(b.transpose(x, swap), k, largest);
  return in_output_shape(c, {b.transpose(found.values, swap), b.transpose(found.indices, swap)});
}

Values lower_kthvalue(Call& c) {
  const Value x = at_least_1d(c.tensor("self"));
  const int64_t dim = wrap_dim(c.integer("dim"), x.rank());
  const int64_t k = c.integer("k");
  return in_output_shape(c, slice_sorted(sort_dim(x, dim, false), dim, k - 1, k));
}

// The lower of the two middle elements. With NaN in a row: the first NaN, or for nanmedian the
// median of the rest, if there is one.
Sorted median_dim(const Value& x, int64_t dim, bool ignore_nan) {
  Builder& b = x.builder();
  const Sorted sorted = sort_dim(x, dim, false);
  const int64_t n = x.dim(dim);
  const int64_t middle = (n - 1) / 2;
  if (!is_float(x.dtype())) {
    return slice_sorted(sorted, dim, middle, middle + 1);
  }
  const Value valid = reduce_sum(b.convert(b.eq(x, x), DType::kS32), {dim}, true);
  Value position;
  if (ignore_nan) {
    const Value counted = b.select(b.eq(valid, zeros_like(valid)), b.like(valid, n), valid);
    position = b.divide(counted - 1, b.like(valid, 2));
  } else {
    position = b.select(b.lt(valid, b.like(valid, n)), valid, b.like(valid, middle));
  }
  return element(sorted, dim, position);
}

Values lower_median_of_all(Call& c, bool ignore_nan) {
  Builder& b = c.b;
  const Value x = c.tensor("self");
  if (x.numel() == 0) {
    // What CPU makes of a NaN in that dtype.
    const DType t = x.dtype();
    const Value nan = b.scalar(std::numeric_limits<double>::quiet_NaN(), DType::kF32);
    return {is_float(t) ? cast(nan, t) : dtype_bytes(t) < 4 ? b.scalar(0, t) : b.lowest(t)};
  }
  return {b.reshape(median_dim(b.reshape(x, {x.numel()}), 0, ignore_nan).values, {})};
}

Values lower_median_along(Call& c, bool ignore_nan) {
  const Value x = at_least_1d(c.tensor("self"));
  if (c.out().numel() == 0) {
    return {full(c.b, 0, x.dtype(), c.out(0).dims), full(c.b, 0, DType::kS64, c.out(1).dims)};
  }
  const int64_t dim = wrap_dim(c.integer("dim"), x.rank());
  return in_output_shape(c, median_dim(x, dim, ignore_nan));
}

Values lower_median(Call& c) { return lower_median_of_all(c, false); }
Values lower_nanmedian(Call& c) { return lower_median_of_all(c, true); }
Values lower_median_dim(Call& c) { return lower_median_along(c, false); }
Values lower_nanmedian_dim(Call& c) { return lower_median_along(c, true); }

// The first of the longest runs in the sorted row is the smallest most frequent value; PyTorch
// reports the last index that has it.
Values lower_mode(Call& c) {
  Builder& b = c.b;
  const Value x = at_least_1d(c.tensor("self"));
  if (c.out().numel() == 0) {
    return {full(b, 0, x.dtype(), c.out(0).dims), full(b, 0, DType::kS64, c.out(1).dims)};
  }
  const int64_t dim = wrap_dim(c.integer("dim"), x.rank());
  const int64_t n = x.dim(dim);
  const Sorted sorted = sort_dim(x, dim, false);
  const Value position = b.iota(Type(DType::kS32, x.dims()), dim);
  const Value previous = b.concatenate(
      {b.slice_dim(sorted.values, dim, 0, 1), b.slice_dim(sorted.values, dim, 0, n - 1)}, dim);
  const Value starts = b.select(b.ne(sorted.values, previous), position, zeros_like(position));
  const Value length = position - scan(starts, dim, Reduction::kMax);
  const Value longest = b.broadcast_to(reduce_max(length, {dim}, true), x.dims());
  const Value end = b.select(b.eq(length, longest), position, b.like(position, n));
  return in_output_shape(c, element(sorted, dim, reduce_min(end, {dim}, true)));
}

// --- searching --------------------------------------------------------------------------------

// Leading sizes of both agree, or `sorted` is a single row for all queries.
Value search(const Value& sorted, const Value& queries, bool right) {
  Builder& b = sorted.builder();
  Value q = queries;
  if (sorted.rank() == 1 || queries.rank() == 0) {
    q = b.reshape(q, {q.numel()});
  }
  Value found = search_sorted(sorted, q, right);
  if (is_float(q.dtype())) {  // NaN belongs behind everything
    found = b.select(is_nan(q), b.like(found, sorted.dim(-1)), found);
  }
  return b.reshape(found, queries.dims());
}

Values lower_searchsorted_of(Call& c, const Value& queries, DType t) {
  Value sorted = c.tensor("sorted_sequence");
  if (Value sorter = c.optional_tensor("sorter")) {
    const int64_t n = sorted.dim(-1);
    c.check_range(sorter, 0, n, "torch.searchsorted(): sorter index out of range");
    sorted = take_along(sorted, plain_index(sorter, n), sorted.rank() - 1);
  }
  const std::string side = c.string("side");
  const bool right = side.empty() ? c.flag("right") : side == "right";
  return {search(cast(sorted, t), cast(queries, t), right)};
}

Values lower_searchsorted_tensor(Call& c) {
  return lower_searchsorted_of(c, c.tensor("self"), c.common_dtype({"sorted_sequence", "self"}));
}

Values lower_searchsorted_scalar(Call& c) {
  const DType t = c.common_dtype({"sorted_sequence", "self"});
  return lower_searchsorted_of(c, c.scalar("self", t), t);
}

Values lower_bucketize_tensor(Call& c) {
  const DType t = c.common_dtype({"boundaries", "self"});
  return {search(cast(c.tensor("boundaries"), t), cast(c.tensor("self"), t), c.flag("right"))};
}

Values lower_bucketize_scalar(Call& c) {
  const DType t = c.common_dtype({"boundaries", "self"});
  return {search(cast(c.tensor("boundaries"), t), c.scalar("self", t), c.flag("right"))};
}

}  // namespace

void add_sort(Entries& t) {
  t.push_back({.name = "sort", .lower = lower_sort});
  t.push_back({.name = "sort.stable", .lower = lower_sort});
  t.push_back({.name = "topk", .lower = lower_topk});
  t.push_back({.name = "kthvalue", .lower = lower_kthvalue});
  t.push_back({.name = "median", .lower = lower_median});
  t.push_back({.name = "median.dim", .lower = lower_median_dim});
  t.push_back({.name = "nanmedian", .lower = lower_nanmedian});
  t.push_back({.name = "nanmedian.dim", .lower = lower_nanmedian_dim});
  t.push_back({.name = "mode", .lower = lower_mode});
  t.push_back({.name = "searchsorted.Tensor", .lower = lower_searchsorted_tensor});
  t.push_back({.name = "searchsorted.Scalar", .lower = lower_searchsorted_scalar});
  t.push_back({.name = "bucketize.Tensor", .lower = lower_bucketize_tensor});
  t.push_back({.name = "bucketize.Scalar", .lower = lower_bucketize_scalar});
}

}  // namespace torch_tpu::ops
