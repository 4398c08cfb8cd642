// The words that identify a program: everything its text depends on. Kept in one place, since a
// forgotten word silently returns the wrong program. Compared word by word, never by hash alone.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <c10/util/SmallVector.h>

#include "csrc/base/hash.h"
#include "csrc/base/number.h"
#include "csrc/trace/shape.h"

namespace torch_tpu::trace {

class Key {
 public:
  C10_ALWAYS_INLINE void add(uint64_t word) { words_.push_back(word); }
  C10_ALWAYS_INLINE void add(int64_t word) { add(static_cast<uint64_t>(word)); }
  void add(double word) { add(std::bit_cast<uint64_t>(word)); }
  // Its bits: an integer and a double may have the same, so a word before says which it is.
  void add_bits(const base::Number& number) { add(number.bits()); }
  C10_ALWAYS_INLINE void add(ShapeRef shape) { words_.append(shape.begin(), shape.end()); }
  void add_text(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
      add(word);
    }
  }

  void set(size_t at, uint64_t word) { words_[at] = word; }

  uint64_t hash() const { return base::hash_words(words_.data(), words_.size()); }
  size_t size() const { return words_.size(); }
  const uint64_t* data() const { return words_.data(); }
  bool operator==(const Key& other) const {
    return words_.size() == other.words_.size() &&
           std::memcmp(words_.data(), other.words_.data(), words_.size() * 8) == 0;
  }

 private:
  c10::SmallVector<uint64_t, 48> words_;
};

}  // namespace torch_tpu::trace
