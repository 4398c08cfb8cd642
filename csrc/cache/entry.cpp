#include "csrc/cache/entry.h"

#include <cstring>

#include "csrc/cache/bytes.h"

namespace torch_tpu::cache {
namespace {

constexpr std::string_view kMagic = "TPUPROG\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kDigestBytes = 16;

struct Parts {
  base::Digest fingerprint;
  std::string_view words;
  std::string_view blob;
};

base::Digest read_digest(ByteReader& in) {
  base::Digest out;
  out.high = in.get<uint64_t>();
  out.low = in.get<uint64_t>();
  return out;
}

Parts split(std::string_view bytes) {
  if (bytes.size() < kMagic.size() + kDigestBytes) throw BadBytes("it is too short");
  const std::string_view body = bytes.substr(0, bytes.size() - kDigestBytes);
  ByteReader tail(bytes.substr(body.size()));
  if (!(read_digest(tail) == base::digest(body))) throw BadBytes("its checksum is wrong");
  ByteReader in(body);
  if (in.bytes(kMagic.size()) != kMagic) throw BadBytes("it is no entry");
  if (in.get<uint32_t>() != kVersion) throw BadBytes("it is of another version");
  const auto num_words = in.get<uint32_t>();
  const auto blob_size = in.get<uint64_t>();
  Parts parts;
  parts.fingerprint = read_digest(in);
  parts.words = in.bytes(uint64_t{num_words} * 8);
  parts.blob = in.bytes(blob_size);
  if (!in.done()) throw BadBytes("it is too long");
  return parts;
}

std::string_view bytes_of(Words words) {
  return {reinterpret_cast<const char*>(words.data()), words.size_bytes()};
}

}  // namespace

uint64_t entry_size(std::string_view start) {
  if (start.size() < kEntryStartBytes || !start.starts_with(kMagic)) return 0;
  ByteReader in(start.substr(kMagic.size()));
  if (in.get<uint32_t>() != kVersion) return 0;
  const uint64_t words = uint64_t{in.get<uint32_t>()} * 8;
  const auto blob = in.get<uint64_t>();
  const uint64_t size = kEntryStartBytes + kDigestBytes + words + blob + kDigestBytes;
  return blob <= kMaxEntryBytes && size <= kMaxEntryBytes ? size : 0;
}

base::Digest digest_of(Words words) { return base::digest(bytes_of(words)); }

std::string encode_entry(const base::Digest& fingerprint, Words words, std::string_view blob) {
  ByteWriter out;
  out.add_bytes(kMagic);
  out.add<uint32_t>(kVersion);
  out.add<uint32_t>(static_cast<uint32_t>(words.size()));
  out.add<uint64_t>(blob.size());
  out.add<uint64_t>(fingerprint.high);
  out.add<uint64_t>(fingerprint.low);
  out.add_bytes(bytes_of(words));
  out.add_bytes(blob);
  std::string bytes = out.take();
  const base::Digest digest = base::digest(bytes);
  ByteWriter tail;
  tail.add<uint64_t>(digest.high);
  tail.add<uint64_t>(digest.low);
  return bytes + tail.take();
}

EntryState decode_entry(std::string_view bytes, const base::Digest& fingerprint, Words words,
                        std::string_view& blob) {
  try {
    const Parts parts = split(bytes);
    if (!(parts.fingerprint == fingerprint) || parts.words != bytes_of(words)) {
      return EntryState::kOther;
    }
    blob = parts.blob;
    return EntryState::kGood;
  } catch (const BadBytes&) {
    return EntryState::kBad;
  }
}

EntryState read_entry_key(std::string_view bytes, const base::Digest& fingerprint,
                          std::string& words) {
  try {
    const Parts parts = split(bytes);
    if (!(parts.fingerprint == fingerprint)) return EntryState::kOther;
    words = parts.words;
    return EntryState::kGood;
  } catch (const BadBytes&) {
    return EntryState::kBad;
  }
}

}  // namespace torch_tpu::cache
