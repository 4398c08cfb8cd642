// Ops whose result sizes depend on the data: nonzero, masked_select, unique and its relatives. Each
// fills a buffer of the largest size possible and names its count; x[mask] is in index.cpp. Also
// masked_scatter, which counts the same way.
#include <limits>
#include <stdexcept>

#include "csrc/ops/helpers.h"
#include "csrc/ops/hits.h"
#include "csrc/ops/index.h"
#include "csrc/ops/scan.h"
#include "csrc/ops/sort.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {

Hits find_hits(const Value& mask) {
  Builder& b = mask.builder();
  const int64_t n = mask.numel();
  const DType t = n <= std::numeric_limits<int32_t>::max() ? DType::kS32 : DType::kS64;
  Hits hits;
  hits.hit = b.reshape(cast(mask, DType::kBool), {n});
  if (n == 0) {
    hits.number = full(b, 0, t, {0});
    hits.count = b.scalar(0, t);
    return hits;
  }
  const Value upto = scan(b.convert(hits.hit, t), 0, Reduction::kAdd);
  hits.number = upto - 1;
  hits.count = b.reshape(b.slice(upto, {n - 1}, {n}), {});
  return hits;
}

Value hit_targets(const Hits& hits) {
  return hits.number.builder().select(hits.hit, hits.number,
                                      hits.number.builder().like(hits.number, -1));
}

Value hit_positions(const Hits& hits) {
  Builder& b = hits.hit.builder();
  return put_rows(zeros_like(hits.number), hit_targets(hits), b.iota(hits.number.type(), 0), 0,
                  Combine::kSet);
}

namespace {

// The coordinates of flat positions, one value per dimension.
Values coordinates(const Value& position, const Dims& dims) {
  Builder& b = position.builder();
  Values columns;
  int64_t stride = stablehlo::product(dims);
  for (int64_t length : dims) {
    stride /= length;
    const Value along = b.divide(position, b.splat_int(stride, position.type()));
    columns.push_back(b.remainder(along, b.splat_int(length, along.type())));
  }
  return columns;
}

// CPU's result lies column by column. Columns are as long as the count says, so each is written
// over the padding of the one before.
Values lower_nonzero(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const int64_t n = self.numel();
  const Hits hits = find_hits(self);
  c.counted(0, hits.count, {-1, self.rank()}, {1, 0});
  Value flat = full(b, 0, DType::kS64, {n * self.rank()});
  if (flat.numel() == 0) return {flat};
  Value at = zeros_like(hits.count);
  for (const Value& column : coordinates(hit_positions(hits), self.dims())) {
    flat = b.dynamic_update_slice(flat, b.convert(column, DType::kS64), {at});
    at = at + hits.count;
  }
  return {flat};
}

// The coordinates of the first `size` nonzero elements, in row-major order, one a row.
Values lower_nonzero_static(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const int64_t n = self.numel();
  const int64_t size = c.integer("size");
  const int64_t fill = c.integer("fill_value");
  if (size < 0) throw std::invalid_argument("expected a size of at least 0");
  if (size * self.rank() == 0 || n == 0) {
    return {full(b, fill, DType::kS64, {size, self.rank()})};
  }
  const Hits hits = find_hits(self);
  const DType t = hits.number.dtype();
  const Value position = put_rows(full(b, -1, t, {size}), hit_targets(hits),
                                  b.iota(Type(t, {n}), 0), 0, Combine::kSet);
  Values columns;
  for (const Value& column : coordinates(position, self.dims())) {
    columns.push_back(b.reshape(column, {size, 1}));
  }
  const Value rows =
      cast(columns.size() == 1 ? columns[0] : b.concatenate(columns, 1), DType::kS64);
  const Value missing = b.lt(position, zeros_like(position));
  return {b.select(b.broadcast_in_dim(missing, rows.dims(), {0}), b.like(rows, fill), rows)};
}

Values lower_masked_select(Call& c) {
  const Value self = c.tensor("self");
  const Value mask = c.tensor("mask");
  if (mask.dtype() != DType::kBool) throw std::invalid_argument("expected a bool mask");
  const auto [values, hit] = broadcast2(self, mask);
  const Hits hits = find_hits(hit);
  c.counted(0, hits.count, {-1});
  const Value flat = c.b.reshape(values, {values.numel()});
  return {put_rows(zeros_like(flat), hit_targets(hits), flat, 0, Combine::kSet)};
}

Values lower_masked_scatter(Call& c) {
  if (c.dtype("mask") != DType::kBool) throw std::invalid_argument("expected a bool mask");
  const Dims& dims = c.out().dims;
  const Value self = c.b.broadcast_to(c.tensor("self"), dims);
  const Value mask = c.b.broadcast_to(cast(c.tensor("mask"), DType::kBool), dims);
  const Value source = c.tensor("source");
  if (self.numel() == 0) return {self};
  const Hits hits = find_hits(mask);
  c.check_range(hits.count, 0, source.numel() + 1,
                "Number of elements of source < number of ones in mask");
  const Value flat = c.b.reshape(cast(source, self.dtype()), {source.numel()});
  const Value taken = take_rows(flat, c.b.maximum(hits.number, zeros_like(hits.number)), 0);
  return {c.b.select(mask, c.b.reshape(taken, dims), self)};
}

Values lower_masked_scatter_backward(Call& c) {
  const Value grad = c.tensor("grad_output");
  const Value mask = c.b.broadcast_to(cast(c.tensor("mask"), DType::kBool), grad.dims());
  const Value zeros = full(c.b, 0, grad.dtype(), {stablehlo::product(c.out().dims)});
  if (grad.numel() == 0) return {c.b.reshape(zeros, c.out().dims)};
  const Value flat = put_rows(zeros, hit_targets(find_hits(mask)),
                              c.b.reshape(grad, {grad.numel()}), 0, Combine::kSet);
  return {c.b.reshape(flat, c.out().dims)};
}

// --- unique -------------------------------------------------------------------------------------

void refuse_complex(const Value& x) {
  if (is_complex(x.dtype())) throw std::invalid_argument("complex numbers have no order");
}

// Groups of equal neighbours along dimension 0 of `rows`, of which `order` gives the places they
// came from (undefined: they are where they were). Results: the first of each group, for each
// original row its group, and the sizes of the groups.
struct Groups {
  Value firsts, inverse, sizes, count;
};

Groups group(const Value& rows, const Value& order) {
  Builder& b = rows.builder();
  const int64_t n = rows.dim(0);
  const Value differs = b.ne(b.slice_dim(rows, 0, 1, n), b.slice_dim(rows, 0, 0, n - 1));
  const Value starts = b.reduce(differs, b.scalar(0, DType::kBool),
                                without(range(rows.rank()), {0}), Reduction::kOr);
  const Hits hits = find_hits(b.concatenate({full(b, 1, DType::kBool, {1}), starts}, 0));
  Groups out;
  out.count = hits.count;
  out.firsts = put_rows(zeros_like(rows), hit_targets(hits), rows, 0, Combine::kSet);
  out.inverse =
      order ? put_rows(zeros_like(hits.number), order, hits.number, 0, Combine::kSet) : hits.number;
  out.sizes =
      put_rows(zeros_like(hits.number), hits.number, ones_like(hits.number), 0, Combine::kAdd);
  return out;
}

// `wanted` says which of inverse and counts; what is not wanted is an empty tensor, as on CPU.
Values unique_flat(Call& c, bool sorts, bool inverse, bool counts) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  refuse_complex(self);
  const int64_t n = self.numel();
  const Value none = full(b, 0, DType::kS64, {0});
  const Value flat = b.reshape(self, {n});
  if (n == 0) return {flat, inverse ? full(b, 0, DType::kS64, self.dims()) : none, none};
  const Sorted sorted = sorts ? sort_dim(flat, 0, false) : Sorted{flat, {}};
  const Groups groups = group(sorted.values, sorted.indices);
  c.counted(0, groups.count, {-1});
  if (counts) c.counted(2, groups.count, {-1});
  return {groups.firsts, inverse ? b.reshape(cast(groups.inverse, DType::kS64), self.dims()) : none,
          counts ? cast(groups.sizes, DType::kS64) : none};
}

Values lower_unique2(Call& c) {
  return unique_flat(c, true, c.flag("return_inverse"), c.flag("return_counts"));
}

Values lower_unique(Call& c) {
  Values all = unique_flat(c, true, c.flag("return_inverse"), false);
  all.pop_back();
  return all;
}

Value row_order(const Value& rows);

// Rows along `dim`: the result has that dimension outermost in storage.
Values unique_rows(Call& c, bool sorts) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  refuse_complex(self);
  const int64_t dim = wrap_dim(c.integer("dim"), self.rank());
  if (self.rank() == 0) throw std::invalid_argument("a 0-d tensor has no dimension");
  const int64_t n = self.dim(dim);
  Dims order = without(range(self.rank()), {dim});
  order.insert(order.begin(), dim);
  const Value none = full(b, 0, DType::kS64, {0});
  if (self.numel() == 0) {
    for (int64_t size : without(self.dims(), {dim})) {
      if (n != 0 || size == 0) throw std::invalid_argument("sizes of 0 outside the dimension");
    }
    c.counted(0, b.scalar(0, DType::kS64), Dims(self.dims()), order);
    return {b.reshape(self, {0}), none, none};
  }
  Value rows = b.transpose(self, order);
  Value from;
  if (sorts) {
    from = row_order(b.reshape(rows, {n, rows.numel() / n}));
    rows = take_rows(rows, from, 0);
  }
  const Groups groups = group(rows, from);
  Dims sizes = self.dims();
  sizes[dim] = -1;
  c.counted(0, groups.count, sizes, order);
  c.counted(2, groups.count, {-1});
  return {groups.firsts, cast(groups.inverse, DType::kS64), cast(groups.sizes, DType::kS64)};
}

// The order of the rows of a matrix, by their first column, then their second ...: stable sorts by
// one column after the other, the last one first. A loop, so that wide rows make no long program.
Value row_order(const Value& rows) {
  Builder& b = rows.builder();
  const int64_t n = rows.dim(0), width = rows.dim(1);
  const Value columns = b.transpose(rows, {1, 0});
  const Value start = b.iota(Type(DType::kS32, {n}), 0);
  const Values done = b.while_loop(
      {b.scalar(width, DType::kS32), start},
      [&](const Values& state) -> Values { return {b.gt(state[0], zeros_like(state[0]))}; },
      [&](const Values& state) -> Values {
        const Value at = state[0] - 1;
        const Value column =
            b.reshape(b.dynamic_slice(columns, {at, b.scalar(0, DType::kS32)}, {1, n}), {n});
        const Sorted sorted = sort_dim(take_rows(column, state[1], 0), 0, false);
        return {at, take_rows(state[1], sorted.indices, 0)};
      });
  return done[1];
}

Values lower_unique_consecutive(Call& c) {
  if (!c.has("dim")) {
    return unique_flat(c, false, c.flag("return_inverse"), c.flag("return_counts"));
  }
  return unique_rows(c, false);
}

Values lower_unique_dim(Call& c) { return unique_rows(c, true); }
Values lower_unique_dim_consecutive(Call& c) { return unique_rows(c, false); }

}  // namespace

void add_counted(Entries& t) {
  const auto add = [&](std::string_view name, Lowering lower) {
    t.push_back({.name = name,
                 .lower = lower,
                 .no_meta = true,
                 .counted = true,
                 .overlap = Overlap::kNone});
  };
  add("nonzero", lower_nonzero);
  add("masked_select", lower_masked_select);
  add("_unique", lower_unique);
  add("_unique2", lower_unique2);
  add("unique_consecutive", lower_unique_consecutive);
  add("unique_dim", lower_unique_dim);
  add("unique_dim_consecutive", lower_unique_dim_consecutive);
  t.push_back({.name = "masked_scatter", .lower = lower_masked_scatter});
  t.push_back({.name = "masked_scatter_backward", .lower = lower_masked_scatter_backward});
  // Its Meta kernel has other strides than CPU's.
  t.push_back({.name = "nonzero_static", .lower = lower_nonzero_static, .no_meta = true});
}

}  // namespace torch_tpu::ops
