// Many stored programs in one file, to be shipped: read-only, of one fingerprint.
//   magic, version, size of the front; fingerprint, number of entries, (digest of the key words,
//   offset, size) each; the digest of all that. Then the entries as in files of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "csrc/cache/entry.h"
#include "csrc/cache/files.h"
#include "csrc/cache/fingerprint.h"

namespace torch_tpu::cache {

// Throws std::runtime_error naming the file when it cannot be written. Written aside and renamed.
void write_pack(const std::string& path, const Fingerprint& fingerprint,
                const std::vector<std::string>& entries);

// Immutable, so thread-safe. Every byte is looked at when it is opened, entry by entry; then the
// file stays open and what is looked up is read again. It is not mapped, as a file cut short
// meanwhile would take the process down.
class Pack {
 public:
  // Throws std::runtime_error: no pack, damaged, of another fingerprint and then in what, or a file
  // that somebody else could have written.
  static Pack open(const std::string& path, const Fingerprint& here);
  // Whatever its fingerprint.
  static Pack open(const std::string& path);
  Pack(Pack&&) = default;

  // Throws BadBytes when the file has changed since it was opened.
  std::optional<std::string> load(Words words) const;
  size_t size() const { return index_.size(); }
  const Fingerprint& fingerprint() const { return fingerprint_; }
  std::string entry(size_t i) const;  // shorter than it should be when it cannot be read

 private:
  Pack() = default;
  void read_front(const std::string& path);
  void check_entries(const std::string& path) const;

  struct Place {
    base::Digest key;
    uint64_t offset;
    uint64_t size;
  };
  File file_;
  Fingerprint fingerprint_;
  base::Digest digest_;
  std::vector<Place> index_;
  std::unordered_map<uint64_t, std::vector<size_t>> by_key_;  // by the key's low word
};

}  // namespace torch_tpu::cache
