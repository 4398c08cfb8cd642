// _grouped_mm: one product per group of rows, where the data say how many rows each group has
// (mixtures of experts). One program serves all group sizes: it walks over the rows in tiles of a
// fixed size, each inside one group, so work grows with the rows and not with rows times groups.
#include <algorithm>
#include <bit>

#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

#include "csrc/ops/helpers.h"
#include "csrc/ops/matmul_precision.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {

void add_grouped_matmul(Entries& t);

namespace {

using stablehlo::DotDims;

Value dot(const Value& a, const Value& b, const DotDims& dims) {
  return a.builder().dot_general(a, b, dims, opmath(a.dtype()), matmul_precision(a.dtype()));
}

Value index(Builder& b, int64_t value) { return b.splat_int(value, Type(DType::kS32, {})); }

// What one step of the walk works on: `size` rows from `start`, of which those in `inside` (a mask
// over the tile) belong to `group` and are not done yet.
struct Tile {
  Value start;
  Value group;
  Value inside;
};

// Large enough to fill a matrix unit, small enough that short groups do not waste most of it.
int64_t tile_size(int64_t rows, int64_t groups) {
  const auto average = static_cast<uint64_t>(std::max<int64_t>(rows / groups, 1));
  return std::min(rows, std::clamp<int64_t>(static_cast<int64_t>(std::bit_ceil(average)), 32, 512));
}

// Calls step(tile, result) until all rows below the last offset are done; `offsets` are the ends
// of the groups. The last tile is moved back to end with the rows, so nothing is padded.
template <typename Step>
Value walk(const Value& offsets, int64_t rows, const Value& init, const Step& step) {
  Builder& b = offsets.builder();
  const int64_t groups = offsets.dim(0);
  if (rows == 0 || groups == 0) return init;
  const int64_t size = tile_size(rows, groups);
  const auto end_of = [&](const Value& group) {
    return b.reshape(b.dynamic_slice(offsets, {group}, {1}), {});
  };
  const Value end = b.minimum(end_of(index(b, groups - 1)), index(b, rows));
  const auto unfinished = [&](const Values& state) -> Values { return {b.lt(state[0], end)}; };
  const auto body = [&](const Values& state) -> Values {
    const Value& row = state[0];
    const Value passed = b.le(offsets, b.broadcast_to(row, offsets.dims()));
    const Value group = reduce_sum(b.convert(passed, DType::kS32), {0});
    const Value start = b.minimum(row, index(b, rows - size));
    const Value stop = b.minimum(row + index(b, size), end_of(group));
    const Value at = b.iota(Type(DType::kS32, {size}), 0) + b.broadcast_to(start, {size});
    const Value inside =
        b.and_(b.ge(at, b.broadcast_to(row, {size})), b.lt(at, b.broadcast_to(stop, {size})));
    // Offsets that do not ascend give some result, but never a walk without end.
    return {b.maximum(stop, row + index(b, 1)), step(Tile{start, group, inside}, state[1])};
  };
  return b.while_loop({index(b, 0), init}, unfinished, body)[1];
}

// Rows of `x` in the tile.
Value tile_rows(const Value& x, const Tile& tile) {
  Builder& b = x.builder();
  return b.dynamic_slice(x, {tile.start, index(b, 0)}, {tile.inside.dim(0), x.dim(1)});
}

Value keep_inside(const Tile& tile, const Value& x, const Value& otherwise) {
  Builder& b = x.builder();
  return b.select(b.broadcast_in_dim(tile.inside, x.dims(), {0}), x, otherwise);
}

Value matrix_of_group(const Value& x, const Value& group) {
  Builder& b = x.builder();
  const Value zero = index(b, 0);
  return b.reshape(b.dynamic_slice(x, {group, zero, zero}, {1, x.dim(1), x.dim(2)}),
                   {x.dim(1), x.dim(2)});
}

// [rows, K] x [groups, K, N] -> [rows, N]; rows of no group are zero.
Value rows_by_group(const Value& a, const Value& matrices, const Value& offsets) {
  Builder& b = a.builder();
  const Value init = full(b, 0, a.dtype(), {a.dim(0), matrices.dim(2)});
  return walk(offsets, a.dim(0), init, [&](const Tile& tile, const Value& out) {
    const Value matrix = matrix_of_group(matrices, tile.group);
    const Value product = cast(dot(tile_rows(a, tile), matrix, {{}, {}, {1}, {0}}), a.dtype());
    const Value merged = keep_inside(tile, product, tile_rows(out, tile));
    return b.dynamic_update_slice(out, merged, {tile.start, index(b, 0)});
  });
}

// [rows, M], [rows, N] -> [groups, M, N]: for each group the transposed left times the right.
Value products_of_groups(const Value& left, const Value& right, const Value& offsets) {
  Builder& b = left.builder();
  const Dims one = {1, left.dim(1), right.dim(1)};
  const Value init = full(b, 0, opmath(left.dtype()), {offsets.dim(0), one[1], one[2]});
  // Both sides are masked: a zero on one does not silence another group's infinity on the other.
  const auto rows_inside = [](const Value& x, const Tile& tile) {
    const Value rows = tile_rows(x, tile);
    return keep_inside(tile, rows, zeros_like(rows));
  };
  return walk(offsets, left.dim(0), init, [&](const Tile& tile, const Value& out) {
    const Value product =
        dot(rows_inside(left, tile), rows_inside(right, tile), {{}, {}, {0}, {0}});
    const Values at = {tile.group, index(b, 0), index(b, 0)};
    const Value sum = b.dynamic_slice(out, at, one) + b.reshape(product, one);
    return b.dynamic_update_slice(out, sum, at);
  });
}

// The checks of PyTorch's kernel, whose Meta twin takes bfloat16 only. Its demands on strides are
// those of a GPU's memory unit, and are not made here.
void check(Call& c, const Value& a, const Value& b) {
  for (std::string_view name : {"self", "mat2"}) {
    const DType t = c.dtype(name);
    TORCH_CHECK(t == DType::kF32 || t == DType::kBF16 || t == DType::kF16, "Expected mat_",
                name == "self" ? "a" : "b", " to be Float32, BFloat16 or Float16 matrix, got ",
                c10::toString(to_scalar_type(t)));
  }
  TORCH_CHECK(a.rank() == 2 || a.rank() == 3, "mat_a has to be 2 or 3d");
  TORCH_CHECK(b.rank() == 2 || b.rank() == 3, "mat_b has to be 2 or 3d");
  TORCH_CHECK(a.dim(-1) == b.dim(-2), "contraction dimension of mat_a and mat_b must match");
  const bool grouped = a.rank() == 2 || b.rank() == 2;
  TORCH_CHECK(c.has("offs") == grouped,
              "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are "
              "3d");
  if (grouped) {
    const Value offsets = c.tensor("offs");
    TORCH_CHECK(offsets.rank() == 1, "offs has to be 1D");
    TORCH_CHECK(c.dtype("offs") == DType::kS32, "Offsets have to be int32");
    const Value& stacked = a.rank() == 3 ? a : b;
    TORCH_CHECK(stacked.rank() == 2 || offsets.dim(0) == stacked.dim(0),
                "matrix batch sizes have to match");
  } else {
    TORCH_CHECK(a.dim(0) == b.dim(0), "batched dimension has to match");
  }
  TORCH_CHECK(!c.has("bias"), "Bias not supported yet");
  TORCH_CHECK(c.dtype_arg("out_dtype").value_or(a.dtype()) == a.dtype(),
              "Grouped gemm output dtype must match `mat_a` dtype");
  const auto type_name = [](const Value& x) {
    return c10::scalarTypeToTypeMeta(to_scalar_type(x.dtype())).name();
  };
  TORCH_CHECK(a.dtype() == b.dtype(),
              "expected m1 and m2 to have the same dtype, but got: ", type_name(a),
              " != ", type_name(b));
}

Values lower_grouped_mm(Call& c) {
  const Value a = c.tensor("self");
  const Value b = c.tensor("mat2");
  check(c, a, b);
  Value out;
  if (a.rank() == 3 && b.rank() == 3) {
    out = dot(a, b, {{0}, {0}, {2}, {1}});
  } else if (b.rank() == 3) {
    out = rows_by_group(a, b, c.tensor("offs"));
  } else if (a.rank() == 3) {
    // Groups of columns: the transposed product has groups of rows.
    const Value flipped =
        rows_by_group(c.b.transpose(b, {1, 0}), c.b.transpose(a, {0, 2, 1}), c.tensor("offs"));
    out = c.b.transpose(flipped, {1, 0});
  } else {
    out = products_of_groups(c.b.transpose(a, {1, 0}), b, c.tensor("offs"));
  }
  return {cast(out, a.dtype())};
}

}  // namespace

void add_grouped_matmul(Entries& t) {
  t.push_back({.name = "_grouped_mm", .lower = lower_grouped_mm, .no_meta = true});
}

}  // namespace torch_tpu::ops
