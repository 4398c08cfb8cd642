// A 128-bit digest of bytes for files: names and checksums. Stable: the same on every machine and
// in every version (what is on disk depends on it). Finds damage, not attacks: it has no secret.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace torch_tpu::base {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Digest&) const = default;
  std::string hex() const {  // 32 digits
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string out;
    for (const uint64_t word : {high, low}) {
      for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[(word >> shift) & 15];
    }
    return out;
  }
};

// Each step (xor a word, multiply by an odd number, rotate) is a bijection of the state for a given
// word and of the word for a given state. So two inputs of equal length that differ in one aligned
// word never have the same digest: a burst of flipped bits within it is always found.
inline Digest digest(std::string_view bytes) noexcept {
  using Wide = unsigned __int128;
  constexpr Wide kFactor = Wide{0x9e3779b97f4a7c15} << 64 | 0xf39cc0605cedc835;
  const auto step = [](Wide state, uint64_t word) {
    state = (state ^ word) * kFactor;
    return state >> 61 | state << 67;
  };
  Wide state = kFactor ^ bytes.size();
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    state = step(state, word);
  }
  if (i < bytes.size()) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, bytes.size() - i);
    state = step(state, word);
  }
  for (uint64_t round = 1; round <= 4; ++round) state = step(state, round);
  return {static_cast<uint64_t>(state >> 64), static_cast<uint64_t>(state)};
}

}  // namespace torch_tpu::base
