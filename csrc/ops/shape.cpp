// Rearranging elements: cat, stack, flip, roll, repeat, padding, triangles, patches (unfold,
// im2col) and shuffles. Views are the runtime's; diagonals are in scatter.cpp.
#include <algorithm>

#include "csrc/ops/helpers.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// --- joining and reordering ----------------------------------------------------------------------

Values lower_cat(Call& c) {
  const Dims& dims = c.out().dims;
  const int64_t rank = static_cast<int64_t>(dims.size());
  const int64_t dim = wrap_dim(c.integer("dim"), rank);
  Values parts;
  for (const Value& x : c.tensors("tensors")) {
    // A 1-d tensor of size 0 joins with anything.
    if (x.numel() == 0) continue;
    parts.push_back(cast(x, c.out().dtype));
  }
  if (parts.empty()) return {full(c.b, 0, c.out().dtype, dims)};
  return {parts.size() == 1 ? parts[0] : c.b.concatenate(parts, dim)};
}

Values lower_stack(Call& c) {
  const Dims& dims = c.out().dims;
  const int64_t dim = wrap_dim(c.integer("dim"), static_cast<int64_t>(dims.size()));
  Values parts;
  for (const Value& x : c.tensors("tensors")) {
    parts.push_back(c.b.reshape(cast(x, c.out().dtype), keep_dims(dims, {dim})));
  }
  return {parts.size() == 1 ? parts[0] : c.b.concatenate(parts, dim)};
}

Values lower_block_diag(Call& c) {
  const Dims& dims = c.out().dims;
  const Value zero = c.b.scalar(0, c.out().dtype);
  Values bands;
  int64_t column = 0;
  for (const Value& x : c.tensors("tensors")) {
    Value block = cast(x, c.out().dtype);
    if (block.rank() < 2) block = c.b.reshape(block, {1, block.numel()});
    const int64_t width = block.dim(1);
    bands.push_back(c.b.pad(block, zero, {0, column}, {0, dims[1] - column - width}));
    column += width;
  }
  return {bands.empty() ? full(c.b, 0, c.out().dtype, dims) : c.b.concatenate(bands, 0)};
}

Values lower_flip(Call& c) {
  const Value self = c.tensor("self");
  const Dims dims = wrap_dims(c.ints("dims"), self.rank(), /*empty_is_all=*/false);
  return {dims.empty() ? self : c.b.reverse(self, dims)};
}

Value roll_dim(const Value& x, int64_t shift, int64_t dim) {
  const int64_t n = x.dim(dim);
  if (n == 0) return x;
  const int64_t cut = ((-shift % n) + n) % n;  // the element that becomes the first
  if (cut == 0) return x;
  Builder& b = x.builder();
  return b.concatenate({b.slice_dim(x, dim, cut, n), b.slice_dim(x, dim, 0, cut)}, dim);
}

Values lower_roll(Call& c) {
  const Value self = c.tensor("self");
  const Dims shifts = c.ints("shifts");
  const Dims dims = c.ints("dims");
  if (dims.empty()) {  // rolls the flattened tensor
    const Value flat = c.b.reshape(self, {self.numel()});
    return {c.b.reshape(roll_dim(flat, shifts.at(0), 0), self.dims())};
  }
  Value result = self;
  for (size_t i = 0; i < dims.size() && self.rank() > 0; ++i) {
    result = roll_dim(result, shifts.at(i), wrap_dim(dims[i], self.rank()));
  }
  return {result};
}

Values lower_repeat(Call& c) {
  const Value self = c.tensor("self");
  const Dims repeats = c.ints("repeats");
  const size_t lead = repeats.size() - self.dims().size();
  // Each dimension becomes (repeat, size); broadcast the first of the pair, then merge the two.
  Dims split, at;
  for (size_t i = 0; i < repeats.size(); ++i) {
    split.push_back(repeats[i]);
    if (i < lead) continue;
    at.push_back(static_cast<int64_t>(split.size()));
    split.push_back(self.dims()[i - lead]);
  }
  return {c.b.reshape(c.b.broadcast_in_dim(self, split, at), c.out().dims)};
}

Values lower_narrow_copy(Call& c) {
  const Value self = c.tensor("self");
  const int64_t dim = wrap_dim(c.integer("dim"), self.rank());
  int64_t start = c.integer("start");
  if (start < 0) start += self.dim(dim);
  return {c.b.slice_dim(self, dim, start, start + c.integer("length"))};
}

// --- padding -------------------------------------------------------------------------------------

// PyTorch lists (before, after) from the last dimension backwards; negative amounts cut.
struct Padding {
  int64_t dim, before, after;
};

std::vector<Padding> paddings(const Dims& pad, int64_t rank) {
  std::vector<Padding> result;
  for (size_t i = 0; i + 1 < pad.size(); i += 2) {
    result.push_back({rank - 1 - static_cast<int64_t>(i / 2), pad[i], pad[i + 1]});
  }
  return result;
}

Values lower_constant_pad_nd(Call& c) {
  const Value self = c.tensor("self");
  Dims low(self.rank(), 0), high(self.rank(), 0);
  for (const Padding& p : paddings(c.ints("pad"), self.rank())) {
    low[p.dim] = p.before;
    high[p.dim] = p.after;
  }
  return {c.b.pad(self, c.scalar("value", self.dtype()), low, high)};
}

// What lies before and after x: mirrored without the border, or the border repeated.
enum class Border : uint8_t { kReflect, kReplicate };

Value pad_border(const Value& x, const Padding& p, Border border) {
  Builder& b = x.builder();
  const int64_t n = x.dim(p.dim);
  Values parts;
  const auto repeat_border = [&](int64_t at, int64_t times) {
    Dims dims = x.dims();
    dims[p.dim] = times;
    return b.broadcast_to(b.slice_dim(x, p.dim, at, at + 1), dims);
  };
  if (p.before > 0) {
    parts.push_back(border == Border::kReflect
                        ? b.reverse(b.slice_dim(x, p.dim, 1, 1 + p.before), {p.dim})
                        : repeat_border(0, p.before));
  }
  parts.push_back(
      b.slice_dim(x, p.dim, std::max<int64_t>(0, -p.before), n + std::min<int64_t>(0, p.after)));
  if (p.after > 0) {
    parts.push_back(border == Border::kReflect
                        ? b.reverse(b.slice_dim(x, p.dim, n - 1 - p.after, n - 1), {p.dim})
                        : repeat_border(n - 1, p.after));
  }
  return parts.size() == 1 ? parts[0] : b.concatenate(parts, p.dim);
}

// `part` of a dimension at `start` of one of size n, zeros around.
Value zero_pad_dim(const Value& part, int64_t dim, int64_t start, int64_t n) {
  Builder& b = part.builder();
  Dims low(part.rank(), 0), high(part.rank(), 0);
  low[dim] = start;
  high[dim] = n - start - part.dim(dim);
  return b.pad(part, b.scalar(0, part.dtype()), low, high);
}

// The transpose of pad_border: folds the gradient of the border back onto the n inner elements.
Value fold_border(const Value& grad, const Padding& p, int64_t n, Border border) {
  Builder& b = grad.builder();
  const int64_t before = std::max<int64_t>(0, p.before);
  const int64_t after = std::max<int64_t>(0, p.after);
  const int64_t length = grad.dim(p.dim);
  const Value center = b.slice_dim(grad, p.dim, before, length - after);
  Value result = zero_pad_dim(center, p.dim, std::max<int64_t>(0, -p.before), n);
  const auto fold = [&](int64_t start, int64_t limit, int64_t mirror_at, int64_t border_at) {
    const Value part = b.slice_dim(grad, p.dim, start, limit);
    const Value folded =
        border == Border::kReflect
            ? zero_pad_dim(b.reverse(part, {p.dim}), p.dim, mirror_at, n)
            : zero_pad_dim(reduce_sum(part, {p.dim}, /*keepdim=*/true), p.dim, border_at, n);
    result = result + folded;
  };
  if (before > 0) fold(0, before, 1, 0);
  if (after > 0) fold(length - after, length, n - 1 - after, n - 1);
  return result;
}

template <Border border>
Values lower_border_pad(Call& c) {
  Value x = c.tensor("self");
  if (x.numel() == 0) return {full(c.b, 0, x.dtype(), c.out().dims)};
  for (const Padding& p : paddings(c.ints("padding"), x.rank())) x = pad_border(x, p, border);
  return {x};
}

template <Border border>
Values lower_border_pad_backward(Call& c) {
  Value grad = c.tensor("grad_output");
  const Dims& dims = c.out().dims;
  if (grad.numel() == 0) return {full(c.b, 0, grad.dtype(), dims)};
  grad = c.b.convert(grad, opmath(grad.dtype()));
  for (const Padding& p : paddings(c.ints("padding"), grad.rank())) {
    grad = fold_border(grad, p, dims[p.dim], border);
  }
  return {grad};
}

// --- triangles -----------------------------------------------------------------------------------

Value column_minus_row(Builder& b, const Dims& dims) {
  const Type positions(DType::kS32, dims);
  const int64_t rank = positions.rank();
  return b.subtract(b.iota(positions, rank - 1), b.iota(positions, rank - 2));
}

template <Compare keep>
Values lower_triangle(Call& c) {
  const Value self = c.tensor("self");
  const Value distance = column_minus_row(c.b, self.dims());
  const Value kept =
      c.b.compare(keep, distance, c.b.splat_int(c.integer("diagonal"), distance.type()));
  return {c.b.select(kept, self, zeros_like(self))};
}

Values lower_trace(Call& c) {
  const Value self = c.tensor("self");
  const Value x = c.b.convert(self, opmath(c.out().dtype));
  const Value distance = column_minus_row(c.b, x.dims());
  const Value diagonal = c.b.select(c.b.eq(distance, zeros_like(distance)), x, zeros_like(x));
  return {reduce_sum(diagonal, {0, 1})};
}

// --- patches -------------------------------------------------------------------------------------

// Replaces `dim` by (size, count): element (k, i) is x[k * dilation + i * stride].
Value windows(const Value& x, int64_t dim, int64_t size, int64_t count, int64_t dilation,
              int64_t stride) {
  Builder& b = x.builder();
  Values parts;
  for (int64_t k = 0; k < size; ++k) {
    const int64_t start = k * dilation;
    const Value part = b.slice_dim(x, dim, start, start + (count - 1) * stride + 1, stride);
    Dims dims = part.dims();
    dims.insert(dims.begin() + dim, 1);
    parts.push_back(b.reshape(part, dims));
  }
  return parts.size() == 1 ? parts[0] : b.concatenate(parts, dim);
}

// The transpose of `windows`: (size, count) at `dim` becomes one dimension of length n.
Value fold_windows(const Value& x, int64_t dim, int64_t n, int64_t dilation, int64_t stride) {
  Builder& b = x.builder();
  const int64_t count = x.dim(dim + 1);
  Value result;
  for (int64_t k = 0; k < x.dim(dim); ++k) {
    Value part = b.slice_dim(x, dim, k, k + 1);
    Dims dims = part.dims();
    dims.erase(dims.begin() + dim);
    part = b.reshape(part, dims);
    Dims low(dims.size(), 0), high(dims.size(), 0), interior(dims.size(), 0);
    low[dim] = k * dilation;
    interior[dim] = stride - 1;
    high[dim] = n - low[dim] - ((count - 1) * stride + 1);
    part = b.pad(part, b.scalar(0, part.dtype()), low, high, interior);
    result = result ? result + part : part;
  }
  return result;
}

int64_t window_count(int64_t n, int64_t size, int64_t dilation, int64_t stride) {
  return (n - dilation * (size - 1) - 1) / stride + 1;
}

// grad_in: the dimension became a count of windows, and the windows came last.
Values lower_unfold_backward(Call& c) {
  Builder& b = c.b;
  const Value grad = c.tensor("grad_in");
  const Dims& dims = c.out().dims;
  const DType wide = opmath(grad.dtype());
  if (grad.numel() == 0) return {full(b, 0, grad.dtype(), dims)};
  if (dims.empty()) return {b.reshape(grad, {})};
  const int64_t rank = static_cast<int64_t>(dims.size());
  const int64_t dim = wrap_dim(c.integer("dim"), rank);
  const int64_t size = c.integer("size");
  const int64_t step = c.integer("step");
  const int64_t count = grad.dim(dim);
  const Value x = b.convert(grad, wide);

  // The windows' dimension next to their count: [.., count, size, ..].
  Dims order = range(rank);
  order.insert(order.begin() + dim + 1, rank);
  const Value placed = b.transpose(x, order);
  if (step >= size) {  // no overlap: space the windows out and merge
    Dims low(rank + 1, 0), high(rank + 1, 0);
    high[dim + 1] = step - size;
    const Value spaced = b.pad(placed, b.scalar(0, wide), low, high);
    Dims merged = dims;
    merged[dim] = count * step;
    const Value joined = b.reshape(spaced, merged);
    Dims tail(rank, 0);
    tail[dim] = dims[dim] - count * step;
    return {b.pad(joined, b.scalar(0, wide), Dims(rank, 0), tail)};
  }
  // Overlap: add each window at its start.
  stablehlo::ScatterDims scatter;
  for (int64_t i = 0; i <= rank; ++i) {
    if (i != dim) scatter.update_window_dims.push_back(i);
  }
  scatter.scatter_dims_to_operand_dims = {dim};
  scatter.index_vector_dim = 1;
  const Value starts = b.iota(Type(DType::kS32, {count}), 0) * step;
  return {b.scatter(
      full(b, 0, wide, dims), starts, placed, scatter,
      [&b](const Values& args) -> Values { return {b.add(args[0], args[1])}; },
      /*indices_are_sorted=*/true)};
}

// [N, C, H, W] -> [N, C * kh * kw, L]; the batch dimension may be missing.
Values lower_im2col(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const Dims kernel = c.ints("kernel_size"), dilation = c.ints("dilation"),
             padding = c.ints("padding"), stride = c.ints("stride");
  if (c.out().numel() == 0) return {full(b, 0, self.dtype(), c.out().dims)};
  Dims dims = self.dims();
  if (dims.size() == 3) dims.insert(dims.begin(), 1);
  const Dims edge = {0, 0, padding[0], padding[1]};
  Value x = b.pad(b.reshape(self, dims), b.scalar(0, self.dtype()), edge, edge);
  for (int64_t i = 1; i >= 0; --i) {  // the last first, so that the other keeps its position
    const int64_t dim = 2 + i;
    x = windows(x, dim, kernel[i], window_count(x.dim(dim), kernel[i], dilation[i], stride[i]),
                dilation[i], stride[i]);
  }
  // [N, C, kh, oh, kw, ow] -> [N, C, kh, kw, oh, ow]
  return {b.reshape(b.transpose(x, {0, 1, 2, 4, 3, 5}), c.out().dims)};
}

Values lower_col2im(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const Dims size = c.ints("output_size"), kernel = c.ints("kernel_size"),
             dilation = c.ints("dilation"), padding = c.ints("padding"), stride = c.ints("stride");
  if (c.out().numel() == 0) return {full(b, 0, self.dtype(), c.out().dims)};
  Dims padded(2), count(2);
  for (int i = 0; i < 2; ++i) {
    padded[i] = size[i] + 2 * padding[i];
    count[i] = window_count(padded[i], kernel[i], dilation[i], stride[i]);
  }
  const int64_t batch = self.rank() == 3 ? self.dim(0) : 1;
  const int64_t channels = self.dim(-2) / (kernel[0] * kernel[1]);
  Value x = b.convert(self, opmath(self.dtype()));
  x = b.reshape(x, {batch, channels, kernel[0], kernel[1], count[0], count[1]});
  x = b.transpose(x, {0, 1, 2, 4, 3, 5});
  x = fold_windows(x, 4, padded[1], dilation[1], stride[1]);
  x = fold_windows(x, 2, padded[0], dilation[0], stride[0]);
  x = b.slice(x, {0, 0, padding[0], padding[1]},
              {batch, channels, padding[0] + size[0], padding[1] + size[1]});
  return {b.reshape(x, c.out().dims)};
}

// --- shuffles ------------------------------------------------------------------------------------

// Splits the last dimensions of x into `parts`, permutes those, and reshapes to the output.
Value shuffle(Call& c, const Value& x, int64_t kept, const Dims& parts, const Dims& order) {
  Dims dims(x.dims().begin(), x.dims().begin() + kept);
  dims.insert(dims.end(), parts.begin(), parts.end());
  Dims permutation = range(kept);
  for (int64_t i : order) permutation.push_back(kept + i);
  return c.b.reshape(c.b.transpose(c.b.reshape(x, dims), permutation), c.out().dims);
}

Values lower_pixel_shuffle(Call& c) {
  const Value x = c.tensor("self");
  const int64_t r = c.integer("upscale_factor");
  return {shuffle(c, x, x.rank() - 3, {x.dim(-3) / (r * r), r, r, x.dim(-2), x.dim(-1)},
                  {0, 3, 1, 4, 2})};
}

Values lower_pixel_unshuffle(Call& c) {
  const Value x = c.tensor("self");
  const int64_t r = c.integer("downscale_factor");
  return {shuffle(c, x, x.rank() - 3, {x.dim(-3), x.dim(-2) / r, r, x.dim(-1) / r, r},
                  {0, 2, 4, 1, 3})};
}

Values lower_channel_shuffle(Call& c) {
  const Value x = c.tensor("self");
  const int64_t groups = c.integer("groups");
  Dims parts = {groups, x.dim(1) / groups};
  parts.insert(parts.end(), x.dims().begin() + 2, x.dims().end());
  Dims order = range(static_cast<int64_t>(parts.size()));
  std::swap(order[0], order[1]);
  return {shuffle(c, x, 1, parts, order)};
}

}  // namespace

void add_shape(Entries& t) {
  t.push_back({.name = "cat", .lower = lower_cat, .overlap = Overlap::kNone});
  t.push_back({.name = "stack", .lower = lower_stack});
  t.push_back({.name = "_stack", .lower = lower_stack});
  t.push_back({.name = "block_diag", .lower = lower_block_diag});
  t.push_back({.name = "flip", .lower = lower_flip});
  t.push_back({.name = "roll", .lower = lower_roll});
  t.push_back({.name = "repeat", .lower = lower_repeat});
  t.push_back({.name = "narrow_copy", .lower = lower_narrow_copy});
  t.push_back({.name = "constant_pad_nd", .lower = lower_constant_pad_nd});
  constexpr auto kReflect = Border::kReflect;
  constexpr auto kReplicate = Border::kReplicate;
  for (std::string_view name : {"reflection_pad1d", "reflection_pad2d", "reflection_pad3d"}) {
    t.push_back({.name = name, .lower = lower_border_pad<kReflect>});
  }
  for (std::string_view name : {"replication_pad1d", "replication_pad2d", "replication_pad3d"}) {
    t.push_back({.name = name, .lower = lower_border_pad<kReplicate>});
  }
  for (std::string_view name :
       {"reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"}) {
    t.push_back({.name = name, .lower = lower_border_pad_backward<kReflect>});
  }
  for (std::string_view name :
       {"replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward"}) {
    t.push_back({.name = name, .lower = lower_border_pad_backward<kReplicate>});
  }
  t.push_back({.name = "tril", .lower = lower_triangle<Compare::kLe>});
  t.push_back({.name = "triu", .lower = lower_triangle<Compare::kGe>});
  t.push_back({.name = "trace", .lower = lower_trace});
  t.push_back({.name = "unfold_backward", .lower = lower_unfold_backward});
  t.push_back({.name = "im2col", .lower = lower_im2col});
  t.push_back({.name = "col2im", .lower = lower_col2im});
  t.push_back({.name = "pixel_shuffle", .lower = lower_pixel_shuffle});
  t.push_back({.name = "pixel_unshuffle", .lower = lower_pixel_unshuffle});
  t.push_back({.name = "channel_shuffle", .lower = lower_channel_shuffle});
}

}  // namespace torch_tpu::ops
