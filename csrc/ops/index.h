// Gather and scatter in PyTorch's terms, shared by the index, scatter and embedding families.
// Indices are integers and, unless said otherwise, already counted from the start: reading out of
// range clamps, writing out of range is dropped. Callers report violations with
// Call::check_index before they shorten an index with plain_index.
#pragma once

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

// How a write combines with what is there. Half types are combined in f32.
enum class Combine : uint8_t { kSet, kAdd, kMul, kMax, kMin };

// s32 when `size` allows it (s64 indices are slow on TPU); `wrap`: negative counts from the end.
Value plain_index(const Value& index, int64_t size, bool wrap = false);
// The same for an index into dimension `dim` of x, which may vary.
Value index_into(const Value& x, int64_t dim, const Value& index, bool wrap);

// Call::check_index and check_range of an index into dimension `dim` of x, which may vary.
void check_index_into(Call& c, const Value& x, int64_t dim, const Value& index,
                      std::string message);
void check_range_into(Call& c, const Value& x, int64_t dim, const Value& index,
                      std::string message);

// x[:, ..., index, ...]: `index` of any shape replaces dimension `dim` of x.
Value take_rows(const Value& x, const Value& index, int64_t dim);
// The inverse: `updates` has the shape take_rows gives.
Value put_rows(const Value& x, const Value& index, const Value& updates, int64_t dim, Combine how);

// torch.gather and torch.scatter: x, index and updates have one rank (0 counts as 1), index may be
// smaller than x outside `dim`, updates has at least the sizes of index.
Value take_along(const Value& x, const Value& index, int64_t dim);
Value put_along(const Value& x, const Value& index, const Value& updates, int64_t dim, Combine how);

// x[indices] and x[indices] = updates, None as undefined Values; negative indices allowed. The
// indexed dimensions stay in place when they are adjacent, else they come first.
Value take_points(const Value& x, const Values& indices);
Value put_points(const Value& x, const Values& indices, const Value& values, Combine how);

// [n], s32: for ascending `starts`, how many of them are <= i, less one. What comes before the
// first start is -1.
Value segment_ids(const Value& starts, int64_t n);
// For each query the number of leading elements of `sorted` that are <= it (`right`) or < it.
// sorted [..., n] and queries [..., m] share their leading dimensions; s32 [..., m].
Value search_sorted(const Value& sorted, const Value& queries, bool right);

}  // namespace torch_tpu::ops
