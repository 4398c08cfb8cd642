// Reading by index: index, index_select, gather, take; and the gather/scatter pieces of index.h.
// Writing by index is in scatter.cpp.
#include "csrc/ops/index.h"

#include <algorithm>
#include <limits>
#include <string>

#include "csrc/ops/helpers.h"
#include "csrc/ops/hits.h"
#include "csrc/ops/scan.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

stablehlo::Region combine_body(Builder& b, Combine how) {
  return [&b, how](const Values& args) -> Values {
    const Value& old = args[0];
    const Value& update = args[1];
    switch (how) {
      case Combine::kSet:
        return {update};
      case Combine::kAdd:
        return {b.add(old, update)};
      case Combine::kMul:
        return {b.multiply(old, update)};
      case Combine::kMax:
        return {nan_maximum(old, update)};
      case Combine::kMin:
        return {nan_minimum(old, update)};
    }
    return {update};
  };
}

Value scatter_into(const Value& x, const Value& index, const Value& updates,
                   const stablehlo::ScatterDims& dims, Combine how) {
  Builder& b = x.builder();
  const DType t = x.dtype();
  const bool sums = how == Combine::kAdd || how == Combine::kMul;
  const DType wide = sums ? opmath(t) : t;
  const Value result =
      b.scatter(b.convert(x, wide), index, b.convert(updates, wide), dims, combine_body(b, how));
  return b.convert(result, t);
}

Value at_least_1d(const Value& x) { return x.rank() == 0 ? x.builder().reshape(x, {1}) : x; }

// The first `sizes` of x in every dimension.
Value leading_block(const Value& x, const Dims& sizes) {
  return x.dims() == sizes ? x : x.builder().slice(x, Dims(sizes.size(), 0), sizes);
}

Dims all_but(int64_t rank, int64_t dim) { return without(range(rank), {dim}); }

// The advanced part of x[indices]: which dimensions, their combined index, where the result has it.
struct Points {
  Dims positions;
  Dims shape;   // of the broadcast indices
  Value index;  // [shape..., positions]
  Dims window;  // positions in the result of the dimensions that are not indexed
  Dims result;  // shape of x[indices]
};

Points resolve_points(const Value& x, const Values& indices) {
  Builder& b = x.builder();
  Points p;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!indices[i]) continue;
    p.positions.push_back(static_cast<int64_t>(i));
    p.shape = broadcast_shape(p.shape, indices[i].dims());
  }
  if (p.positions.empty()) {
    p.window = range(x.rank());
    p.result = x.dims();
    return p;
  }

  const bool small = std::all_of(p.positions.begin(), p.positions.end(), [&](int64_t dim) {
    return x.dim(dim) <= std::numeric_limits<int32_t>::max();
  });
  Dims column = p.shape;
  column.push_back(1);
  Values columns;
  for (int64_t dim : p.positions) {
    Value index = index_into(x, dim, indices[dim], /*wrap=*/true);
    if (!small) index = b.convert(index, DType::kS64);
    columns.push_back(b.reshape(b.broadcast_to(index, p.shape), column));
  }
  p.index = columns.size() == 1 ? columns[0]
                                : b.concatenate(columns, static_cast<int64_t>(p.shape.size()));

  const int64_t first = p.positions.front();
  const int64_t count = static_cast<int64_t>(p.positions.size());
  const bool adjacent = p.positions.back() - first == count - 1;
  const int64_t at = adjacent ? first : 0;
  const int64_t points_rank = static_cast<int64_t>(p.shape.size());
  p.result = without(x.dims(), p.positions);
  for (int64_t i = 0; i < static_cast<int64_t>(p.result.size()); ++i) {
    p.window.push_back(i < at ? i : i + points_rank);
  }
  p.result.insert(p.result.begin() + at, p.shape.begin(), p.shape.end());
  return p;
}

}  // namespace

Value plain_index(const Value& index, int64_t size, bool wrap) {
  Builder& b = index.builder();
  const bool small = size <= std::numeric_limits<int32_t>::max();
  const Value i = b.convert(index, small ? DType::kS32 : DType::kS64);
  if (!wrap) return i;
  return b.select(b.lt(i, zeros_like(i)), b.add(i, b.splat_int(size, i.type())), i);
}

Value index_into(const Value& x, int64_t dim, const Value& index, bool wrap) {
  if (!wrap || !x.type().varies(dim)) return plain_index(index, x.dim(dim), wrap);
  Builder& b = index.builder();
  const Value i = plain_index(index, x.dim(dim));
  const Value size = b.broadcast_to(size_of(x, dim, i.dtype()), i.dims());
  return b.select(b.lt(i, zeros_like(i)), b.add(i, size), i);
}

void check_index_into(Call& c, const Value& x, int64_t dim, const Value& index,
                      std::string message) {
  if (x.type().varies(dim)) {
    const Value zero = c.b.scalar(0, DType::kS64);
    c.check_index(index, zero, size_of(x, dim, DType::kS64), std::move(message));
  } else {
    c.check_index(index, 0, x.dim(dim), std::move(message));
  }
}

void check_range_into(Call& c, const Value& x, int64_t dim, const Value& index,
                      std::string message) {
  if (x.type().varies(dim)) {
    const Value zero = c.b.scalar(0, DType::kS64);
    c.check_range(index, zero, size_of(x, dim, DType::kS64), std::move(message));
  } else {
    c.check_range(index, 0, x.dim(dim), std::move(message));
  }
}

Value take_rows(const Value& x, const Value& index, int64_t dim) {
  Builder& b = x.builder();
  const int64_t points_rank = index.rank();
  Dims result = x.dims();
  result.erase(result.begin() + dim);
  result.insert(result.begin() + dim, index.dims().begin(), index.dims().end());
  if (x.numel() == 0 || index.numel() == 0) return full(b, 0, x.dtype(), result);

  stablehlo::GatherDims dims;
  for (int64_t i = 0; i < x.rank() - 1; ++i) {
    dims.offset_dims.push_back(i < dim ? i : i + points_rank);
  }
  dims.collapsed_slice_dims = dims.start_index_map = {dim};
  dims.index_vector_dim = points_rank;
  return b.gather(x, index, dims, keep_dims(x.dims(), {dim}));
}

Value put_rows(const Value& x, const Value& index, const Value& updates, int64_t dim, Combine how) {
  if (x.numel() == 0 || updates.numel() == 0) return x;
  stablehlo::ScatterDims dims;
  for (int64_t i = 0; i < x.rank() - 1; ++i) {
    dims.update_window_dims.push_back(i < dim ? i : i + index.rank());
  }
  dims.inserted_window_dims = dims.scatter_dims_to_operand_dims = {dim};
  dims.index_vector_dim = index.rank();
  return scatter_into(x, index, updates, dims, how);
}

Value take_along(const Value& x, const Value& index, int64_t dim) {
  Builder& b = x.builder();
  if (x.numel() == 0 || index.numel() == 0) return full(b, 0, x.dtype(), index.dims());
  const Value operand = at_least_1d(x);
  const Value points = at_least_1d(index);
  Dims block = points.dims();
  block[dim] = operand.dim(dim);

  stablehlo::GatherDims dims;
  dims.collapsed_slice_dims = dims.start_index_map = {dim};
  dims.operand_batching_dims = dims.start_indices_batching_dims = all_but(operand.rank(), dim);
  dims.index_vector_dim = points.rank();
  const Value taken =
      b.gather(leading_block(operand, block), points, dims, Dims(operand.rank(), 1));
  return b.reshape(taken, index.dims());
}

Value put_along(const Value& x, const Value& index, const Value& updates, int64_t dim,
                Combine how) {
  if (x.numel() == 0 || index.numel() == 0) return x;
  Builder& b = x.builder();
  const Value operand = at_least_1d(x);
  const Value points = at_least_1d(index);
  Dims block = points.dims();
  block[dim] = operand.dim(dim);

  stablehlo::ScatterDims dims;
  dims.inserted_window_dims = dims.scatter_dims_to_operand_dims = {dim};
  dims.input_batching_dims = dims.scatter_indices_batching_dims = all_but(operand.rank(), dim);
  dims.index_vector_dim = points.rank();
  Value result = scatter_into(leading_block(operand, block), points,
                              leading_block(at_least_1d(updates), points.dims()), dims, how);
  if (block != operand.dims()) {
    const Values origin(operand.rank(), b.scalar(0, DType::kS32));
    result = b.dynamic_update_slice(operand, result, origin);
  }
  return b.reshape(result, x.dims());
}

Value take_points(const Value& x, const Values& indices) {
  Builder& b = x.builder();
  const Points p = resolve_points(x, indices);
  if (p.positions.empty()) return x;
  if (x.numel() == 0 || stablehlo::product(p.result) == 0) {
    return full(b, 0, x.dtype(), p.result);
  }
  stablehlo::GatherDims dims;
  dims.offset_dims = p.window;
  dims.collapsed_slice_dims = dims.start_index_map = p.positions;
  dims.index_vector_dim = static_cast<int64_t>(p.shape.size());
  return b.gather(x, p.index, dims, keep_dims(x.dims(), p.positions));
}

Value put_points(const Value& x, const Values& indices, const Value& values, Combine how) {
  Builder& b = x.builder();
  const Points p = resolve_points(x, indices);
  const Value updates = b.broadcast_to(cast(values, x.dtype()), p.result);
  if (p.positions.empty()) return how == Combine::kSet ? updates : b.add(x, updates);
  if (x.numel() == 0 || updates.numel() == 0) return x;
  stablehlo::ScatterDims dims;
  dims.update_window_dims = p.window;
  dims.inserted_window_dims = dims.scatter_dims_to_operand_dims = p.positions;
  dims.index_vector_dim = static_cast<int64_t>(p.shape.size());
  return scatter_into(x, p.index, updates, dims, how);
}

Value segment_ids(const Value& starts, int64_t n) {
  Builder& b = starts.builder();
  const Value marks = put_rows(full(b, 0, DType::kS32, {n}), plain_index(starts, n),
                               full(b, 1, DType::kS32, starts.dims()), 0, Combine::kAdd);
  return scan(marks, 0, Reduction::kAdd) - 1;
}

Value search_sorted(const Value& sorted, const Value& queries, bool right) {
  Builder& b = sorted.builder();
  const int64_t n = sorted.dim(-1);
  const int64_t last = sorted.rank() - 1;
  Value low = full(b, 0, DType::kS32, queries.dims());
  if (n == 0 || queries.numel() == 0) return low;
  // The answer is in [low, low + span]; every step halves the span. Clamping keeps the last steps
  // inside, and is right: beyond the end the answer is n.
  for (int64_t span = n; span > 0; span /= 2) {
    const Value middle = b.minimum(low + (span / 2), b.like(low, n - 1));
    const Value found = take_along(sorted, middle, last);
    const Value before = right ? b.le(found, queries) : b.lt(found, queries);
    low = b.select(before, middle + 1, low);
  }
  return low;
}

namespace {

// x[mask]: the mask stands for the first dimensions.
Values index_by_mask(Call& c, const Value& self, const Value& mask) {
  const Hits hits = find_hits(mask);
  Dims rows(self.dims().begin() + mask.rank(), self.dims().end());
  Dims result = rows;
  rows.insert(rows.begin(), mask.numel());
  result.insert(result.begin(), -1);
  c.counted(0, hits.count, result);
  return {take_rows(c.b.reshape(self, rows), hit_positions(hits), 0)};
}

Values lower_index(Call& c) {
  const Value self = c.tensor("self");
  const Values indices = c.tensors("indices");
  // Any other mask has been turned into integer indices by the caller.
  if (indices[0] && (indices[0].dtype() == DType::kBool || indices[0].dtype() == DType::kU8)) {
    return index_by_mask(c, self, indices[0]);
  }
  int64_t position = 0;  // CPU counts the indexed dimensions only
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!indices[i]) continue;
    const int64_t dim = static_cast<int64_t>(i);
    const int64_t size = self.dim(dim);
    if (size == 0 && c.out().numel() != 0) {
      throw std::invalid_argument("[index] expected elements along the dimension");
    }
    const std::string message =
        "index {} is out of bounds for dimension " + std::to_string(position++);
    if (self.type().varies(dim)) {
      const Value limit = size_of(self, dim, DType::kS64);
      c.check_index(indices[i], -limit, limit, message);
    } else {
      c.check_index(indices[i], -size, size, message + " with size " + std::to_string(size));
    }
  }
  return {take_points(self, indices)};
}

Values lower_index_select(Call& c) {
  const Value self = c.tensor("self");
  const Value index = c.tensor("index");
  const int64_t dim = wrap_dim(c.integer("dim"), self.rank());
  const Value rows = at_least_1d(self);
  check_index_into(c, rows, dim, index, "index out of range in self");
  const Value taken = take_rows(rows, at_least_1d(plain_index(index, rows.dim(dim))), dim);
  return {c.b.reshape(taken, c.out().dims)};
}

Values lower_gather(Call& c) {
  const Value self = c.tensor("self");
  const Value index = c.tensor("index");
  const int64_t dim = wrap_dim(c.integer("dim"), self.rank());
  const int64_t size = at_least_1d(self).dim(dim);
  check_range_into(c, at_least_1d(self), dim, index,
                   "index {} is out of bounds for dimension " + std::to_string(dim) +
                       " with size " + std::to_string(size));
  return {take_along(self, plain_index(index, size), dim)};
}

Values lower_take(Call& c) {
  const Value self = c.tensor("self");
  const Value index = c.tensor("index");
  const int64_t n = self.numel();
  expect_whole(self, range(self.rank()), "take");
  c.check_index(
      index, -n, n,
      "out of range: tried to access index {} on a tensor of " + std::to_string(n) + " elements.");
  return {take_rows(c.b.reshape(self, {n}), plain_index(index, n, /*wrap=*/true), 0)};
}

}  // namespace

void add_index(Entries& t) {
  t.push_back({.name = "index.Tensor", .lower = lower_index, .expands_masks = true});
  t.push_back({.name = "index_select", .lower = lower_index_select});
  t.push_back({.name = "gather", .lower = lower_gather});
  t.push_back({.name = "take", .lower = lower_take});
}

}  // namespace torch_tpu::ops
