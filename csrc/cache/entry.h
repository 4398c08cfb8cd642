// One stored program as bytes, in a file of its own or within a pack:
//   magic, version, number of key words, size of the blob, fingerprint, key words, blob, digest.
// The digest covers all before it, so a file that was cut short or changed is recognised; the words
// are compared in full, so another program is never taken for the one wanted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "csrc/base/digest.h"

namespace torch_tpu::cache {

using Words = std::span<const uint64_t>;

base::Digest digest_of(Words words);

// No compiler gives more: an executable is a protobuf message. What claims to be larger is damaged.
inline constexpr uint64_t kMaxEntryBytes = uint64_t{2} << 30;
// The size of the entry that begins with these bytes, so that what is no entry need not be read; 0
// when it is none.
inline constexpr size_t kEntryStartBytes = 24;
uint64_t entry_size(std::string_view start);

std::string encode_entry(const base::Digest& fingerprint, Words words, std::string_view blob);

enum class EntryState {
  kGood,
  kOther,  // sound, but of another key or fingerprint
  kBad,    // damaged, or no entry at all
};

// `blob` points into `bytes`.
EntryState decode_entry(std::string_view bytes, const base::Digest& fingerprint, Words words,
                        std::string_view& blob);

// The key words of a sound entry of any key: for moving entries between folder and pack.
EntryState read_entry_key(std::string_view bytes, const base::Digest& fingerprint,
                          std::string& words);

}  // namespace torch_tpu::cache
