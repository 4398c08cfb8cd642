// Element sizes, dense layouts, and the copy between two of them.
#include "csrc/pjrt/host_layout.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <string>

#include "csrc/pjrt/error.h"

namespace torch_tpu::pjrt {
namespace {

// The order of dimensions, fastest first, of a dense array with these strides.
// Plugins take only minor_to_major on read-back, so strides are translated here.
std::vector<int64_t> order_of_strides(const std::vector<int64_t>& strides,
                                      const std::vector<int64_t>& dims, int element_bytes) {
  std::vector<int64_t> order(dims.size());
  std::iota(order.rbegin(), order.rend(), 0);
  // Dimensions of size 1 may have any stride: they keep their row-major place
  // (stable sort) by comparing equal to what a dense array would give them.
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if (dims[a] == 1 || dims[b] == 1) return dims[a] == 1 && dims[b] != 1;
    return strides[a] < strides[b];
  });
  int64_t expected = element_bytes;
  for (const int64_t d : order) {
    if (dims[d] == 1) continue;
    if (strides[d] != expected) {
      throw Error(PJRT_Error_Code_INVALID_ARGUMENT, "PJRT_Buffer_ToHostBuffer",
                  "expected byte strides of a dense array, got stride " +
                      std::to_string(strides[d]) + " where dimension " + std::to_string(d) +
                      " needs " + std::to_string(expected) + ". Copy to a dense array first.");
    }
    expected *= dims[d];
  }
  return order;
}

// Byte strides of a dense array with this order of dimensions.
std::vector<int64_t> strides_of_order(const std::vector<int64_t>& order,
                                      const std::vector<int64_t>& dims, size_t element_bytes) {
  std::vector<int64_t> strides(dims.size());
  int64_t stride = static_cast<int64_t>(element_bytes);
  for (const int64_t d : order) {
    strides[d] = stride;
    stride *= dims[d];
  }
  return strides;
}

}  // namespace

std::vector<int64_t> minor_to_major_of(const HostLayout& layout, const std::vector<int64_t>& dims,
                                       PJRT_Buffer_Type type) {
  if (layout.kind != HostLayout::Kind::kRowMajor && layout.values.size() != dims.size()) {
    throw Error(PJRT_Error_Code_INVALID_ARGUMENT, "PJRT_Buffer_ToHostBuffer",
                "expected a host layout with " + std::to_string(dims.size()) +
                    " entries, one per dimension, got " + std::to_string(layout.values.size()) +
                    ".");
  }
  switch (layout.kind) {
    case HostLayout::Kind::kMinorToMajor:
      return layout.values;
    case HostLayout::Kind::kByteStrides: {
      const bool empty = std::find(dims.begin(), dims.end(), 0) != dims.end();
      if (!empty) return order_of_strides(layout.values, dims, (element_bits(type) + 7) / 8);
      break;
    }
    case HostLayout::Kind::kRowMajor:
      break;
  }
  std::vector<int64_t> order(dims.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

int element_bits(PJRT_Buffer_Type type) noexcept {
  switch (type) {
    case PJRT_Buffer_Type_INVALID:
    case PJRT_Buffer_Type_TOKEN:
      return 0;
    case PJRT_Buffer_Type_S2:
    case PJRT_Buffer_Type_U2:
      return 2;
    case PJRT_Buffer_Type_S4:
    case PJRT_Buffer_Type_U4:
    case PJRT_Buffer_Type_F4E2M1FN:
      return 4;
    case PJRT_Buffer_Type_PRED:
    case PJRT_Buffer_Type_S8:
    case PJRT_Buffer_Type_U8:
    case PJRT_Buffer_Type_F8E5M2:
    case PJRT_Buffer_Type_F8E4M3FN:
    case PJRT_Buffer_Type_F8E4M3B11FNUZ:
    case PJRT_Buffer_Type_F8E5M2FNUZ:
    case PJRT_Buffer_Type_F8E4M3FNUZ:
    case PJRT_Buffer_Type_F8E4M3:
    case PJRT_Buffer_Type_F8E3M4:
    case PJRT_Buffer_Type_F8E8M0FNU:
      return 8;
    case PJRT_Buffer_Type_S16:
    case PJRT_Buffer_Type_U16:
    case PJRT_Buffer_Type_F16:
    case PJRT_Buffer_Type_BF16:
      return 16;
    case PJRT_Buffer_Type_S32:
    case PJRT_Buffer_Type_U32:
    case PJRT_Buffer_Type_F32:
      return 32;
    case PJRT_Buffer_Type_S64:
    case PJRT_Buffer_Type_U64:
    case PJRT_Buffer_Type_F64:
    case PJRT_Buffer_Type_C64:
      return 64;
    case PJRT_Buffer_Type_C128:
      return 128;
  }
  return 0;
}

const char* element_type_name(PJRT_Buffer_Type type) noexcept {
  // In the order of the enum.
  static constexpr const char* kNames[] = {
      "invalid",    "pred",   "s8",       "s16",           "s32",
      "s64",        "u8",     "u16",      "u32",           "u64",
      "f16",        "f32",    "f64",      "bf16",          "c64",
      "c128",       "f8e5m2", "f8e4m3fn", "f8e4m3b11fnuz", "f8e5m2fnuz",
      "f8e4m3fnuz", "s4",     "u4",       "token",         "s2",
      "u2",         "f8e4m3", "f8e3m4",   "f8e8m0fnu",     "f4e2m1fn"};
  static_assert(std::size(kNames) == PJRT_Buffer_Type_F4E2M1FN + 1);
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

void reorder(const void* src, const std::vector<int64_t>& src_order, void* dst,
             const std::vector<int64_t>& dst_order, const std::vector<int64_t>& dims,
             size_t element_bytes) {
  const auto from = strides_of_order(src_order, dims, element_bytes);
  const auto* in = static_cast<const char*>(src);
  auto* out = static_cast<char*>(dst);
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;

  // Walks the destination in memory order, like an odometer.
  std::vector<int64_t> index(dims.size(), 0);
  int64_t offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(out + i * static_cast<int64_t>(element_bytes), in + offset, element_bytes);
    for (const int64_t d : dst_order) {
      offset += from[d];
      if (++index[d] < dims[d]) break;
      offset -= from[d] * dims[d];
      index[d] = 0;
    }
  }
}

}  // namespace torch_tpu::pjrt
