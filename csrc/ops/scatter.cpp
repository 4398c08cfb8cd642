// Writing by index: scatter*, index_put, index_add/copy/fill/reduce, put, and the
// *_scatter and *_backward forms of views, which are pads and selects.
#include <algorithm>
#include <string>

#include "csrc/ops/helpers.h"
#include "csrc/ops/hits.h"
#include "csrc/ops/index.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

Value at_least_1d(const Value& x) { return x.rank() == 0 ? x.builder().reshape(x, {1}) : x; }

std::string out_of_bounds(int64_t dim, int64_t size) {
  return "index {} is out of bounds for dimension " + std::to_string(dim) + " with size " +
         std::to_string(size);
}

// One write: a function of (what is there, updates, how).
template <typename Write>
Value write_reduced(const Write& write, const Value& self, const Value& source,
                    const std::string& reduce, bool include_self) {
  Builder& b = self.builder();
  const DType t = self.dtype();
  // Half types too: CPU rounds after each update.
  const DType wide = is_float(t) && dtype_bytes(t) == 1 ? opmath(t) : t;
  const Value updates = b.convert(source, wide);
  Value start = b.convert(self, wide);
  const auto from = [&](const Value& identity) {  // what the first update combines with
    return include_self ? start
                        : write(start, b.broadcast_to(identity, updates.dims()), Combine::kSet);
  };
  if (reduce == "prod" || reduce == "multiply") {
    return write(from(b.scalar(1, wide)), updates, Combine::kMul);
  }
  if (reduce == "amax") return write(from(b.lowest(wide)), updates, Combine::kMax);
  if (reduce == "amin") return write(from(b.highest(wide)), updates, Combine::kMin);

  const Value sum = write(from(b.scalar(0, wide)), updates, Combine::kAdd);
  if (reduce != "mean") return sum;
  // Counts need no more than s32, but half types would round them.
  const Value initial = full(b, include_self ? 1 : 0, DType::kS32, self.dims());
  Value count = write(initial, full(b, 1, DType::kS32, updates.dims()), Combine::kAdd);
  count = b.convert(b.maximum(count, ones_like(count)), wide);
  if (!is_integer(wide)) return b.divide(sum, count);
  // Rounds down, as CPU does for integers.
  const Value quotient = b.divide(sum, count);
  const Value inexact = b.ne(b.multiply(quotient, count), sum);
  const Value lower = b.and_(inexact, b.lt(sum, zeros_like(sum)));
  return b.select(lower, quotient - 1, quotient);
}

// --- scatter ----------------------------------------------------------------------------------

struct Along {
  Value self, index;
  int64_t dim;
};

Along scatter_arguments(Call& c) {
  const Value self = c.tensor("self");
  const Value index = c.tensor("index");
  const int64_t dim = wrap_dim(c.integer("dim"), self.rank());
  const int64_t size = at_least_1d(self).dim(dim);
  check_range_into(c, at_least_1d(self), dim, index, out_of_bounds(dim, size));
  return {self, plain_index(index, size), dim};
}

Value scatter_source(Call& c, const Along& a) {
  if (c.has("src")) return c.tensor("src");
  return c.b.broadcast_to(c.scalar("value", a.self.dtype()), a.index.dims());
}

Values lower_scatter(Call& c) {
  const Along a = scatter_arguments(c);
  return {put_along(a.self, a.index, scatter_source(c, a), a.dim, Combine::kSet)};
}

Values lower_scatter_add(Call& c) {
  const Along a = scatter_arguments(c);
  return {put_along(a.self, a.index, scatter_source(c, a), a.dim, Combine::kAdd)};
}

// reduce is "add" or "multiply" (scatter), or "sum", "prod", "mean", "amax", "amin".
Values lower_scatter_reduce(Call& c) {
  const Along a = scatter_arguments(c);
  const auto write = [&](const Value& x, const Value& updates, Combine how) {
    return put_along(x, a.index, updates, a.dim, how);
  };
  if (a.index.numel() == 0) return {a.self};
  return {write_reduced(write, a.self, scatter_source(c, a), c.string("reduce"),
                        c.flag_or("include_self", true))};
}

// --- index_add, index_copy, index_fill, index_reduce: whole rows along one dimension -------------

struct Rows {
  Value self, index;  // at least 1-d; index is 1-d
  int64_t dim;
};

Rows row_arguments(Call& c, const std::string& message, bool wrap = false) {
  const Value self = at_least_1d(c.tensor("self"));
  const Value index = at_least_1d(c.tensor("index"));
  const int64_t dim = wrap_dim(c.integer("dim"), self.rank());
  const int64_t size = self.dim(dim);
  expect_whole(self, {dim}, "index");
  const int64_t low = wrap ? -size : 0;
  if (c.has("alpha")) {  // index_add alone has it, and alone raises RuntimeError
    c.check_range(index, low, size, out_of_bounds(dim, size));
  } else {
    c.check_index(index, low, size, message + out_of_bounds(dim, size));
  }
  return {self, plain_index(index, size, wrap), dim};
}

// The source as rows: a 0-d source is one row, and its dtype is self's.
Value row_source(Call& c, const Rows& r) {
  Dims dims = r.self.dims();
  dims[r.dim] = r.index.dim(0);
  return c.b.reshape(cast(c.tensor("source"), r.self.dtype()), dims);
}

Values lower_index_add(Call& c) {
  const Rows r = row_arguments(c, "");
  Value source = row_source(c, r);
  if (c.known("alpha") != 1.0) {
    const DType wide = opmath(source.dtype());
    source = c.b.convert(source, wide);
    source = c.b.multiply(source, c.b.broadcast_to(c.scalar("alpha", wide), source.dims()));
  }
  const Value self = c.b.convert(r.self, source.dtype());
  return {c.b.reshape(put_rows(self, r.index, source, r.dim, Combine::kAdd), c.out().dims)};
}

Values lower_index_copy(Call& c) {
  const Rows r = row_arguments(c, "index_copy_(): ");
  const Value result = put_rows(r.self, r.index, row_source(c, r), r.dim, Combine::kSet);
  return {c.b.reshape(result, c.out().dims)};
}

Values lower_index_fill(Call& c, const Value& value) {
  const Rows r = row_arguments(c, "", /*wrap=*/true);
  Dims dims = r.self.dims();
  dims[r.dim] = r.index.dim(0);
  const Value result =
      put_rows(r.self, r.index, c.b.broadcast_to(value, dims), r.dim, Combine::kSet);
  return {c.b.reshape(result, c.out().dims)};
}

Values lower_index_fill_scalar(Call& c) {
  return lower_index_fill(c, c.scalar("value", c.dtype("self")));
}

Values lower_index_fill_tensor(Call& c) {
  return lower_index_fill(c, cast(c.tensor("value"), c.dtype("self")));
}

Values lower_index_reduce(Call& c) {
  const Rows r = row_arguments(c, "");
  const auto write = [&](const Value& x, const Value& updates, Combine how) {
    return put_rows(x, r.index, updates, r.dim, how);
  };
  if (r.index.numel() == 0) return {c.tensor("self")};
  const Value result =
      write_reduced(write, r.self, row_source(c, r), c.string("reduce"), c.flag("include_self"));
  return {c.b.reshape(result, c.out().dims)};
}

// --- index_put, put --------------------------------------------------------------

std::string shape_text(const Dims& dims, int64_t counted = -1) {
  std::string text = "[";
  for (int64_t i = 0; i < static_cast<int64_t>(dims.size()); ++i) {
    text += (i == 0 ? "" : ", ") + (i == counted ? "{}" : std::to_string(dims[i]));
  }
  return text + "]";
}

// x[:, mask] = values: a select, as no element is hit twice. `lead` dimensions come before the
// mask's. The result of x[:, mask] is [lead, hits, rest]; values broadcast to that, so that only
// their dimension of the hits needs the number of each hit.
Value put_masked(Call& c, const Value& self, const Value& mask, const Value& values, int64_t lead,
                 bool accumulate) {
  Builder& b = c.b;
  const int64_t rest = self.rank() - lead - mask.rank();
  Value spread = cast(values, self.dtype());
  Dims mask_dims = range(mask.rank());
  for (int64_t& dim : mask_dims) dim += lead;
  Value hit = b.broadcast_in_dim(cast(mask, DType::kBool), self.dims(), mask_dims);
  const int64_t hits_dim = spread.rank() - rest - 1;
  if (hits_dim >= 0 && spread.dim(hits_dim) != 1) {
    const int64_t given = spread.dim(hits_dim);
    const Hits hits = find_hits(mask);
    Dims result = without(self.dims(), mask_dims);
    result.insert(result.begin() + lead, given);
    c.check_range(hits.count, given, given + 1,
                  "shape mismatch: value tensor of shape " + shape_text(values.dims()) +
                      " cannot be broadcast to indexing result of shape " +
                      shape_text(result, lead));
    const Value fits = b.eq(hits.count, b.like(hits.count, given));
    hit = b.and_(hit, b.broadcast_to(fits, hit.dims()));  // nothing is written when it raises
    spread = take_rows(b.broadcast_to(spread, result),
                       b.maximum(hits.number, zeros_like(hits.number)), lead);
    spread = b.reshape(spread, self.dims());
  } else if (hits_dim >= 0) {  // the same for all hits
    Dims dims = spread.dims();
    dims.erase(dims.begin() + hits_dim);
    dims.insert(dims.begin() + hits_dim, mask.rank(), 1);
    spread = b.broadcast_to(b.reshape(spread, dims), self.dims());
  } else {
    spread = b.broadcast_to(spread, self.dims());
  }
  if (accumulate) spread = b.add(self, spread);
  return b.select(hit, spread, self);
}

// Integer indices, or one mask alone; any other mask has been turned into integer indices by the
// caller.
Values lower_index_put(Call& c) {
  const Value self = c.tensor("self");
  const Values indices = c.tensors("indices");
  const Value values = c.tensor("values");
  const bool accumulate = c.flag("accumulate");
  int64_t position = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!indices[i]) continue;
    const int64_t dim = static_cast<int64_t>(i);
    if (indices[i].dtype() == DType::kBool || indices[i].dtype() == DType::kU8) {
      return {put_masked(c, self, indices[i], values, dim, accumulate)};
    }
    const int64_t size = self.dim(dim);
    if (size == 0 && indices[i].numel() != 0) {
      throw std::invalid_argument("[index] expected elements along the dimension");
    }
    if (self.type().varies(dim)) {
      const Value limit = size_of(self, dim, DType::kS64);
      c.check_index(indices[i], -limit, limit, out_of_bounds(position++, size));
    } else {
      c.check_index(indices[i], -size, size, out_of_bounds(position++, size));
    }
  }
  return {put_points(self, indices, values, accumulate ? Combine::kAdd : Combine::kSet)};
}

Values lower_put(Call& c) {
  const Value self = c.tensor("self");
  const Value index = c.tensor("index");
  const int64_t n = self.numel();
  expect_whole(self, range(self.rank()), "put");
  c.check_index(
      index, -n, n,
      "out of range: tried to access index {} on a tensor of " + std::to_string(n) + " elements.");
  const Value flat = put_rows(c.b.reshape(self, {n}),
                              plain_index(c.b.reshape(index, {index.numel()}), n, /*wrap=*/true),
                              c.b.reshape(c.tensor("source"), {index.numel()}), 0,
                              c.flag("accumulate") ? Combine::kAdd : Combine::kSet);
  return {c.b.reshape(flat, self.dims())};
}

// --- views written out of place ------------------------------------------------------------------

// A slice of one dimension: `count` elements from `start` by `step`, as padding around them.
struct Placement {
  Dims low, high, interior;
};

Placement place(const Dims& shape, int64_t dim, int64_t start, int64_t step, int64_t count) {
  Placement p{Dims(shape.size(), 0), Dims(shape.size(), 0), Dims(shape.size(), 0)};
  p.low[dim] = start;
  p.interior[dim] = step - 1;
  const int64_t length = count == 0 ? 0 : (count - 1) * step + 1;
  p.high[dim] = shape[dim] - start - length;
  return p;
}

// `part` in a tensor of `around` elsewhere (zeros when undefined).
Value embed(const Value& part, const Dims& shape, const Placement& p, const Value& around) {
  Builder& b = part.builder();
  const Value padded = b.pad(part, b.scalar(0, part.dtype()), p.low, p.high, p.interior);
  if (!around) return padded;
  const Value inside = b.pad(full(b, 1, DType::kBool, part.dims()), b.scalar(0, DType::kBool),
                             p.low, p.high, p.interior);
  return b.select(inside, padded, b.broadcast_to(around, shape));
}

int64_t clamp_bound(int64_t bound, int64_t size) {
  if (bound < 0) bound += size;
  return std::min(std::max<int64_t>(bound, 0), size);
}

Value slice_into(Call& c, const Value& part, const Dims& shape, const Value& around) {
  const int64_t dim = wrap_dim(c.integer("dim"), static_cast<int64_t>(shape.size()));
  const int64_t start = clamp_bound(c.integer_or("start", 0), shape[dim]);
  return embed(part, shape, place(shape, dim, start, c.integer("step"), part.dim(dim)), around);
}

Value select_into(Call& c, const Value& part, const Dims& shape, const Value& around) {
  const int64_t dim = wrap_dim(c.integer("dim"), static_cast<int64_t>(shape.size()));
  const int64_t index = c.integer("index");
  const Value row = c.b.reshape(part, keep_dims(shape, {dim}));
  return embed(row, shape, place(shape, dim, index < 0 ? index + shape[dim] : index, 1, 1), around);
}

// `part` is [others..., k] and lies on a diagonal of (dim1, dim2).
Value diagonal_into(Call& c, const Value& part, const Dims& shape, const Value& around) {
  Builder& b = c.b;
  const int64_t rank = static_cast<int64_t>(shape.size());
  const int64_t dim1 = wrap_dim(c.integer("dim1"), rank);
  const int64_t dim2 = wrap_dim(c.integer("dim2"), rank);
  const int64_t offset = c.integer("offset");
  // Element k is at row k (or k - offset below the main diagonal): stretch to all rows, repeat
  // along the columns, and keep where column - row is the offset.
  const int64_t last = part.rank() - 1;
  const int64_t above = offset < 0 ? std::min(-offset, shape[dim1]) : 0;
  Dims low(part.rank(), 0), high(part.rank(), 0);
  low[last] = above;
  high[last] = shape[dim1] - above - part.dim(-1);
  const Value rows = b.pad(part, b.scalar(0, part.dtype()), low, high);
  Dims to;
  for (int64_t i = 0; i < rank; ++i) {
    if (i != dim1 && i != dim2) to.push_back(i);
  }
  to.push_back(dim1);
  // XLA broadcasts keep the order of dimensions, so the rows go to their place by a transpose.
  Dims order = range(rows.rank());
  std::sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return to[i] < to[j]; });
  std::sort(to.begin(), to.end());
  const Value spread = b.broadcast_in_dim(b.transpose(rows, order), shape, to);
  const Type positions(DType::kS32, shape);
  const Value distance = b.subtract(b.iota(positions, dim2), b.iota(positions, dim1));
  const Value on = b.eq(distance, b.splat_int(offset, positions));
  return b.select(on, spread, around ? around : zeros_like(spread));
}

Values lower_slice_scatter(Call& c) {
  const Value self = c.tensor("self");
  return {slice_into(c, cast(c.tensor("src"), self.dtype()), self.dims(), self)};
}

Values lower_select_scatter(Call& c) {
  const Value self = c.tensor("self");
  return {select_into(c, cast(c.tensor("src"), self.dtype()), self.dims(), self)};
}

Values lower_diagonal_scatter(Call& c) {
  const Value self = c.tensor("self");
  return {diagonal_into(c, cast(c.tensor("src"), self.dtype()), self.dims(), self)};
}

Values lower_slice_backward(Call& c) {
  return {slice_into(c, c.tensor("grad_output"), c.out().dims, {})};
}

Values lower_select_backward(Call& c) {
  return {select_into(c, c.tensor("grad_output"), c.out().dims, {})};
}

Values lower_diagonal_backward(Call& c) {
  return {diagonal_into(c, c.tensor("grad_output"), c.out().dims, {})};
}

Values lower_diag_embed(Call& c) { return {diagonal_into(c, c.tensor("self"), c.out().dims, {})}; }

}  // namespace

void add_scatter(Entries& t) {
  t.push_back({.name = "scatter.src", .lower = lower_scatter});
  t.push_back({.name = "scatter.value", .lower = lower_scatter, .stores_numbers = true});
  t.push_back({.name = "scatter.reduce", .lower = lower_scatter_reduce});
  t.push_back(
      {.name = "scatter.value_reduce", .lower = lower_scatter_reduce, .stores_numbers = true});
  t.push_back({.name = "scatter_add", .lower = lower_scatter_add});
  t.push_back({.name = "scatter_reduce.two", .lower = lower_scatter_reduce});
  t.push_back({.name = "index_add", .lower = lower_index_add});
  t.push_back({.name = "index_copy", .lower = lower_index_copy});
  t.push_back(
      {.name = "index_fill.int_Scalar", .lower = lower_index_fill_scalar, .stores_numbers = true});
  t.push_back({.name = "index_fill.int_Tensor",
               .lower = lower_index_fill_tensor,
               .cpu_scalars = true,
               .overlap = Overlap::kFine});
  t.push_back({.name = "index_reduce", .lower = lower_index_reduce});
  t.push_back(
      {.name = "index_put", .lower = lower_index_put, .cpu_scalars = true, .expands_masks = true});
  t.push_back({.name = "_index_put_impl",
               .lower = lower_index_put,
               .cpu_scalars = true,
               .expands_masks = true});
  t.push_back({.name = "put", .lower = lower_put});
  t.push_back({.name = "slice_scatter", .lower = lower_slice_scatter});
  t.push_back({.name = "select_scatter", .lower = lower_select_scatter});
  t.push_back({.name = "diagonal_scatter", .lower = lower_diagonal_scatter});
  t.push_back({.name = "slice_backward", .lower = lower_slice_backward});
  t.push_back({.name = "select_backward", .lower = lower_select_backward});
  t.push_back({.name = "diagonal_backward", .lower = lower_diagonal_backward});
  t.push_back({.name = "diag_embed", .lower = lower_diag_embed});
}

}  // namespace torch_tpu::ops
