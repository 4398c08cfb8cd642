// The words of a key that are not plain numbers: written by frame.cpp, read again by key_text.cpp.
#pragma once

#include <cstdint>

#include "csrc/trace/node.h"

namespace torch_tpu::dispatch {

// Words that stand for the absence of something; no shape or count takes this value.
constexpr uint64_t kNoneWord = ~uint64_t{0};

inline uint64_t tensor_word(trace::TensorArg::Form form, c10::ScalarType dtype, size_t rank,
                            uint64_t flags) {
  return static_cast<uint64_t>(form) | static_cast<uint64_t>(dtype) << 8 |
         static_cast<uint64_t>(rank) << 16 | flags << 32;
}

enum Flag : uint64_t {
  kConj = 1,
  kWrapped = 2,
  kStrided = 4,     // strides follow
  kViewOfBase = 8,  // place, strides and the base follow
  kPartialWrite = 16,
  kNeg = 32,
  kLargeScalar = 64,  // a number from the CPU: see kLargeNumber
};

// In the word of a runtime number: one that would lose digits where numbers of this call travel, so
// it travels wider.
constexpr uint64_t kLargeNumber = uint64_t{1} << 16;

// The place of a view: a bit per dimension of the base along which it does not begin at 0, ...
constexpr size_t kMaxStarts = 32;
constexpr uint64_t kGathered = uint64_t{1} << 32;    // its elements do not lie in a box
constexpr uint64_t kFixedPlace = uint64_t{1} << 33;  // or this alone: the offset follows

}  // namespace torch_tpu::dispatch
