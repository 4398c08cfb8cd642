// A fast 64-bit hash over 64-bit words (multiply-mix: the 128-bit product of two
// words, folded). For in-memory tables only: not stable between versions, not
// for untrusted input, not for files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace torch_tpu::base {

// Folds the full product so that every input bit reaches every output bit.
constexpr uint64_t hash_mix(uint64_t a, uint64_t b) noexcept {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

namespace detail {
// Odd constants with about half their bits set; their only task is to keep
// small or zero words from producing a zero factor.
inline constexpr uint64_t kHashKey0 = 0x9e3779b97f4a7c15ULL;
inline constexpr uint64_t kHashKey1 = 0xd6e8feb86659fd93ULL;
inline constexpr uint64_t kHashKey2 = 0xa0761d6478bd642fULL;
}  // namespace detail

// Adds one word to a running hash; order matters.
constexpr uint64_t hash_combine(uint64_t seed, uint64_t word) noexcept {
  return hash_mix(seed ^ detail::kHashKey0, word ^ detail::kHashKey1);
}

// Two words per multiplication; the length is part of the result.
constexpr uint64_t hash_words(const uint64_t* words, size_t count, uint64_t seed = 0) noexcept {
  uint64_t hash = hash_mix(seed ^ detail::kHashKey0, count ^ detail::kHashKey1);
  size_t i = 0;
  for (; i + 2 <= count; i += 2) {
    hash = hash_mix(words[i] ^ detail::kHashKey1, words[i + 1] ^ hash ^ detail::kHashKey2);
  }
  if (i < count) hash = hash_mix(words[i] ^ detail::kHashKey1, hash ^ detail::kHashKey2);
  return hash_mix(hash ^ detail::kHashKey0, detail::kHashKey2);
}

constexpr uint64_t hash_words(std::span<const uint64_t> words, uint64_t seed = 0) noexcept {
  return hash_words(words.data(), words.size(), seed);
}

// The same over bytes, for names and program text.
constexpr uint64_t hash_bytes(std::string_view bytes, uint64_t seed = 0) noexcept {
  uint64_t hash = hash_mix(seed ^ detail::kHashKey0, bytes.size() ^ detail::kHashKey1);
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    for (size_t j = i; j < bytes.size() && j < i + 8; ++j) {
      word |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[j])) << (8 * (j - i));
    }
    hash = hash_mix(word ^ detail::kHashKey1, hash ^ detail::kHashKey2);
  }
  return hash_mix(hash ^ detail::kHashKey0, detail::kHashKey2);
}

}  // namespace torch_tpu::base
