// Element types and the layouts of dense host arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "pjrt_c_api.h"

namespace torch_tpu::pjrt {

// Bits one element takes in memory (4 for S4, 2 for U2, ...); 0 for TOKEN and INVALID.
int element_bits(PJRT_Buffer_Type type) noexcept;
// "f32", "bf16", "s64", "pred", ...
const char* element_type_name(PJRT_Buffer_Type type) noexcept;

// How host memory is laid out. Spelled out on every read-back, since the layout
// of a device array is the compiler's choice and need not be row-major.
struct HostLayout {
  enum class Kind { kRowMajor, kMinorToMajor, kByteStrides };
  Kind kind = Kind::kRowMajor;
  std::vector<int64_t> values;  // minor_to_major or byte strides, one per dimension

  static HostLayout row_major() { return {}; }
  static HostLayout minor_to_major(std::vector<int64_t> order) {
    return {Kind::kMinorToMajor, std::move(order)};
  }
  static HostLayout byte_strides(std::vector<int64_t> strides) {
    return {Kind::kByteStrides, std::move(strides)};
  }
};

// The order of dimensions, fastest first, that `layout` means for this array.
// Throws INVALID_ARGUMENT for strides that are not those of a dense array.
std::vector<int64_t> minor_to_major_of(const HostLayout& layout, const std::vector<int64_t>& dims,
                                       PJRT_Buffer_Type type);

// Copies a dense array from one order of dimensions to another.
void reorder(const void* src, const std::vector<int64_t>& src_order, void* dst,
             const std::vector<int64_t>& dst_order, const std::vector<int64_t>& dims,
             size_t element_bytes);

}  // namespace torch_tpu::pjrt
