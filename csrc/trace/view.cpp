// The idea: write the view's non-trivial strides in descending order s0 > s1 > ... If each divides
// the one before, the storage reshaped to [N/s0, s0/s1, ..., s_last] turns the view into a box of
// that shape: a slice to read, a dynamic_update_slice to write. Steps (x[::2]), diagonals and
// splits all come out as boxes. What does not (overlapping windows, odd strides) gathers or
// scatters.
#include "csrc/trace/view.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include <c10/util/SmallVector.h>

namespace torch_tpu::trace {
namespace {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::DType;
using stablehlo::Type;
using stablehlo::Value;
using stablehlo::Values;

Dims to_dims(ShapeRef shape) { return Dims(shape.begin(), shape.end()); }

// Dims ordered from the largest stride to the smallest.
Dims storage_order(ShapeRef dims, ShapeRef strides) {
  Dims order(dims.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const auto i = static_cast<size_t>(a);
    const auto j = static_cast<size_t>(b);
    // Size-1 dims have arbitrary strides: they go first.
    if (dims[i] == 1 || dims[j] == 1) return dims[i] == 1 && dims[j] != 1;
    return strides[i] > strides[j];
  });
  return order;
}

int64_t extents(const Value& x) { return stablehlo::product(x.dims()); }

Value flatten(const Value& x) { return x.builder().reshape(x, {extents(x)}); }

// Elements picked one by one: which of them count is not known.
void expect_whole(const Value& x) {
  if (!x.type().is_static()) {
    throw stablehlo::Unproven("[view] a dimension that varies in a view of odd strides, " +
                              x.type().str());
  }
}

// The same bytes as elements of another dtype, in storage order; keeps the shape where it can.
Value reinterpret(const Value& x, DType dtype) {
  Builder& b = x.builder();
  if (x.dtype() == dtype) return x;
  if (x.dtype() == DType::kBool) return reinterpret(b.convert(x, DType::kU8), dtype);
  if (dtype == DType::kBool) {
    const Value bytes = reinterpret(x, DType::kU8);
    return b.ne(bytes, b.like(bytes, 0));
  }
  if (stablehlo::is_complex(x.dtype())) {
    Dims column = x.dims();
    column.push_back(1);
    const Value parts =
        b.concatenate({b.reshape(b.real(x), column), b.reshape(b.imag(x), column)}, x.rank());
    return reinterpret(parts, dtype);
  }
  if (stablehlo::is_complex(dtype)) {
    const Value parts = reinterpret(flatten(x), stablehlo::real_of(dtype));
    const Value pairs = b.reshape(parts, {extents(parts) / 2, 2});
    const int64_t n = pairs.dim(0);
    return b.complex(b.reshape(b.slice_dim(pairs, 1, 0, 1), {n}),
                     b.reshape(b.slice_dim(pairs, 1, 1, 2), {n}));
  }
  const int64_t from = stablehlo::dtype_bytes(x.dtype());
  const int64_t to = stablehlo::dtype_bytes(dtype);
  if (from == to) return b.bitcast_convert(x, Type(dtype, x.dims()));
  if (from > to) {
    Dims dims = x.dims();
    dims.push_back(from / to);
    return b.bitcast_convert(x, Type(dtype, dims));
  }
  const int64_t ratio = to / from;
  const int64_t n = extents(x) / ratio;
  const Value whole = b.slice(flatten(x), {0}, {n * ratio});
  return b.bitcast_convert(b.reshape(whole, {n, ratio}), Type(dtype, {n}));
}

// How a view lies in a storage of n elements, if it is a box of a reshaped storage.
struct Box {
  bool valid = false;
  Dims shape;    // the reshaped storage, its size rounded up to padded
  Dims strides;  // of these dims in the storage
  int64_t padded = 0;
  Dims starts;
  Dims sizes;
  Dims order;  // view dims (positions) in the order of the box's dims
};

// Calls visit(position, extent, stride, start) for each dim of the box, from the largest stride to
// the smallest; a position of -1 stands for the single element taken of what is left. False when
// there is no such box.
template <typename Visit>
bool visit_box(int64_t n, ShapeRef sizes, ShapeRef strides, int64_t offset, Visit&& visit) {
  c10::SmallVector<int64_t, 8> order;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] <= 1 || strides[i] <= 0) continue;
    auto at = order.end();
    while (at != order.begin() && strides[static_cast<size_t>(at[-1])] < strides[i]) --at;
    order.insert(at, static_cast<int64_t>(i));
  }
  int64_t rest = offset;
  int64_t outer = 0;  // stride of the dim before; 0 for the first
  for (int64_t position : order) {
    const int64_t stride = strides[static_cast<size_t>(position)];
    if (outer != 0 && (outer % stride != 0 || outer == stride)) return false;
    const int64_t extent = outer == 0 ? (n + stride - 1) / stride : outer / stride;
    const int64_t start = rest / stride;
    rest %= stride;
    if (start + sizes[static_cast<size_t>(position)] > extent) return false;
    visit(position, extent, stride, start);
    outer = stride;
  }
  if (order.empty()) {  // one element
    if (rest >= n) return false;
    outer = n;
  }
  if (outer > 1) visit(-1, outer, 1, rest);
  return true;
}

Box find_box(int64_t n, const Geometry& view) {
  Box box;
  box.valid =
      visit_box(n, view.sizes, view.strides, view.offset,
                [&](int64_t position, int64_t extent, int64_t stride, int64_t start) {
                  if (box.shape.empty()) box.padded = extent * stride;
                  box.shape.push_back(extent);
                  box.strides.push_back(stride);
                  box.starts.push_back(start);
                  box.sizes.push_back(position < 0 ? 1 : view.sizes[static_cast<size_t>(position)]);
                  if (position >= 0) box.order.push_back(position);
                });
  if (box.shape.empty()) box.padded = n;
  return box;
}

Value pad_flat(const Value& flat, int64_t size) {
  Builder& b = flat.builder();
  if (extents(flat) == size) return flat;
  return b.pad(flat, b.splat(0, Type(flat.dtype(), {})), {0}, {size - extents(flat)});
}

Value to_box(const Value& storage, const Box& box) {
  Builder& b = storage.builder();
  if (extents(storage) == box.padded) return b.reshape(storage, box.shape);
  return b.reshape(pad_flat(flatten(storage), box.padded), box.shape);
}

// The place of the view's first element in the storage: s32[], or s64[] in a large one.
Value flat_place(Builder& b, const Dims& base, ShapeRef base_strides, const Values& starts) {
  const DType dtype = stablehlo::product(base) > INT32_MAX ? DType::kS64 : DType::kS32;
  Value place = b.scalar(0, dtype);
  for (size_t d = 0; d < starts.size(); ++d) {
    if (!starts[d].defined()) continue;
    place = place + b.convert(starts[d], dtype) * b.scalar(base_strides[d], dtype);
  }
  return place;
}

// Where the box begins, if that is only known at run time. An index along a dimension of the base
// decides one of the box's starts where their strides nest, as they do unless the view was reshaped
// across the dimensions of its base; else all are taken from the place in the storage.
Values find_starts(Builder& b, const Box& box, const Dims& base, ShapeRef base_strides,
                   const Values& starts) {
  const DType dtype = stablehlo::product(base) > INT32_MAX ? DType::kS64 : DType::kS32;
  Values out(box.shape.size(), b.scalar(0, dtype));
  Dims most(box.shape.size(), 0);  // the largest start there can be
  bool nested = true;
  for (size_t d = 0; d < starts.size() && nested; ++d) {
    if (!starts[d].defined()) continue;
    size_t i = 0;
    while (i < box.shape.size() && box.strides[i] > base_strides[d]) ++i;
    nested = i < box.shape.size() && base_strides[d] % box.strides[i] == 0;
    if (!nested) break;
    const int64_t step = base_strides[d] / box.strides[i];
    most[i] += (base[d] - 1) * step;
    nested = i == 0 || most[i] < box.shape[i];
    out[i] = out[i] + b.convert(starts[d], dtype) * b.scalar(step, dtype);
  }
  if (nested) return out;
  const Value place = flat_place(b, base, base_strides, starts);
  for (size_t i = 0; i < box.shape.size(); ++i) {
    const Value above = b.divide(place, b.scalar(box.strides[i], dtype));
    out[i] = i == 0 ? above : b.remainder(above, b.scalar(box.shape[i], dtype));
  }
  return out;
}

// Flat storage positions of the view's elements.
Value positions(Builder& b, const Geometry& view, const Value& place) {
  const Type type(DType::kS64, to_dims(view.sizes));
  Value index = place.defined() ? b.broadcast_in_dim(b.convert(place, DType::kS64), type.dims, {})
                                : b.splat_int(view.offset, type);
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] <= 1 || view.strides[i] == 0) continue;
    index = index +
            b.multiply(b.iota(type, static_cast<int64_t>(i)), b.splat_int(view.strides[i], type));
  }
  return index;
}

Value gather_view(const Value& storage, const Geometry& view, const Value& place) {
  expect_whole(storage);
  Builder& b = storage.builder();
  const Value index = positions(b, view, place);
  Dims with_vector = index.dims();
  with_vector.push_back(1);
  stablehlo::GatherDims dims;
  dims.collapsed_slice_dims = {0};
  dims.start_index_map = {0};
  dims.index_vector_dim = index.rank();
  return b.gather(flatten(storage), b.reshape(index, with_vector), dims, {1});
}

// What `write(x, part)` writes, but never over x: into zeros, of which x then takes what was
// written. Where dimensions of the part vary, only what counts was.
template <typename Write>
Value write_apart(const Value& x, const Value& part, const Write& write) {
  Builder& b = x.builder();
  const Value zeros = b.splat(0, Type(x.dtype(), x.dims()));
  const Value nowhere = b.splat(0, Type(DType::kBool, x.dims()));
  Value here = b.splat(1, Type(DType::kBool, part.dims()));
  if (!part.type().is_static()) here = b.or_(b.eq(part, part), here);
  return b.select(write(nowhere, here), write(zeros, part), x);
}

Value scatter_view(const Value& storage, const Geometry& view, const Value& update,
                   const Value& place) {
  expect_whole(storage);
  expect_whole(update);
  Builder& b = storage.builder();
  const int64_t n = update.numel();
  stablehlo::ScatterDims dims;
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  return b.scatter(flatten(storage), b.reshape(positions(b, view, place), {n, 1}), flatten(update),
                   dims, [](const stablehlo::Values& args) { return stablehlo::Values{args[1]}; });
}

}  // namespace

Value update_part(const Value& x, const Value& part, const Values& starts, bool apart) {
  const auto write = [&](const Value& to, const Value& what) {
    return x.builder().dynamic_update_slice(to, what, starts);
  };
  return apart ? write_apart(x, part, write) : write(x, part);
}

bool is_box(int64_t n, ShapeRef sizes, ShapeRef strides, int64_t offset) {
  return visit_box(n, sizes, strides, offset, [](auto...) {});
}

Value read_view(const Value& base, ShapeRef base_strides, const Geometry& view, DType dtype,
                const Place& place) {
  Builder& b = base.builder();
  const Dims sizes = to_dims(view.sizes);
  const bool moves = !place.starts.empty();
  if (!moves && base.dtype() == dtype && view.offset == 0 && base.dims() == sizes &&
      ShapeRef(view.strides) == base_strides) {
    return base;
  }
  if (stablehlo::product(sizes) == 0) return b.splat(0, Type(dtype, sizes));
  Value storage = base;
  if (!is_contiguous(base.dims(), base_strides)) {
    storage = b.transpose(base, storage_order(base.dims(), base_strides));
  }
  storage = reinterpret(storage, dtype);
  const Box box = find_box(extents(storage), view);
  if (!box.valid || !place.is_box) {
    return gather_view(storage, view,
                       moves ? flat_place(b, base.dims(), base_strides, place.starts) : Value());
  }
  Value x = to_box(storage, box);
  if (moves) {
    x = b.dynamic_slice(x, find_starts(b, box, base.dims(), base_strides, place.starts), box.sizes);
  } else {
    Dims limits;
    for (size_t i = 0; i < box.starts.size(); ++i) limits.push_back(box.starts[i] + box.sizes[i]);
    x = b.slice(x, box.starts, limits);
  }
  // Drop the trailing single element, go to the view's order, put back sizes 1 and broadcasts.
  Dims kept;
  for (int64_t position : box.order) kept.push_back(sizes[static_cast<size_t>(position)]);
  x = b.reshape(x, kept);
  Dims permutation(box.order.size());
  std::iota(permutation.begin(), permutation.end(), 0);
  std::sort(permutation.begin(), permutation.end(), [&](int64_t a, int64_t c) {
    return box.order[static_cast<size_t>(a)] < box.order[static_cast<size_t>(c)];
  });
  x = b.transpose(x, permutation);
  if (extents(x) == stablehlo::product(sizes)) return b.reshape(x, sizes);
  Dims broadcast_dims = box.order;
  std::sort(broadcast_dims.begin(), broadcast_dims.end());
  return b.broadcast_in_dim(x, sizes, broadcast_dims);
}

Value write_view(const Value& base, ShapeRef base_strides, const Geometry& view,
                 const Value& update, const Place& place) {
  Builder& b = base.builder();
  const Dims sizes = to_dims(view.sizes);
  const bool moves = !place.starts.empty();
  if (!moves && base.dtype() == update.dtype() && view.offset == 0 && base.dims() == sizes &&
      ShapeRef(view.strides) == base_strides) {
    return update;
  }
  if (extents(update) == 0) return base;
  const bool row_major = is_contiguous(base.dims(), base_strides);
  const Dims order = storage_order(base.dims(), base_strides);
  const Value ordered = row_major ? base : b.transpose(base, order);
  const Value storage = reinterpret(ordered, update.dtype());
  const Box box = find_box(extents(storage), view);
  Value written;
  if (!box.valid || !place.is_box) {
    const Value first = moves ? flat_place(b, base.dims(), base_strides, place.starts) : Value();
    const auto write = [&](const Value& to, const Value& what) {
      return scatter_view(to, view, what, first);
    };
    const Value flat = flatten(storage);
    written = place.apart ? write_apart(flat, update, write) : write(flat, update);
  } else {
    Dims kept;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] > 1 && view.strides[i] > 0) {
        kept.push_back(sizes[i]);
      } else if (sizes[i] > 1) {
        throw std::invalid_argument("cannot write to an expanded view");
      }
    }
    // From the view's order to the box's.
    Dims by_position = box.order;
    std::sort(by_position.begin(), by_position.end());
    Dims permutation;
    for (int64_t position : box.order) {
      permutation.push_back(std::find(by_position.begin(), by_position.end(), position) -
                            by_position.begin());
    }
    const Value part = b.reshape(b.transpose(b.reshape(update, kept), permutation), box.sizes);
    if (box.sizes == box.shape) {
      written = part;
    } else {
      Values starts;
      if (moves) {
        starts = find_starts(b, box, base.dims(), base_strides, place.starts);
      } else {
        for (int64_t start : box.starts) starts.push_back(b.scalar(start, DType::kS32));
      }
      written = update_part(to_box(storage, box), part, starts, place.apart);
    }
  }
  if (extents(written) != extents(storage)) {
    written = b.slice(flatten(written), {0}, {extents(storage)});
  }
  // Back to the base: a narrower view dtype may have split off whole elements only.
  Value back = reinterpret(b.reshape(written, storage.dims()), ordered.dtype());
  back = b.reshape(back, ordered.dims());
  if (row_major) return back;
  Dims inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return b.transpose(back, inverse);
}

}  // namespace torch_tpu::trace
