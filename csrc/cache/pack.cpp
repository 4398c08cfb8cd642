#include "csrc/cache/pack.h"

#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "csrc/cache/bytes.h"

namespace torch_tpu::cache {
namespace {

constexpr std::string_view kMagic = "TPUPACK\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kStartBytes = 20;  // magic, version, size of the front
constexpr size_t kPlaceBytes = 32;
constexpr uint64_t kMaxFrontBytes = uint64_t{256} << 20;  // 8 million programs

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw std::runtime_error("the pack " + path + " " + why);
}

[[noreturn]] void damaged(const std::string& path, const std::string& where) {
  fail(path, "is damaged (" + where + "). Copy it again, or make it again.");
}

std::string reason(int error) { return std::generic_category().message(error); }

void add(ByteWriter& out, const base::Digest& digest) {
  out.add<uint64_t>(digest.high);
  out.add<uint64_t>(digest.low);
}

base::Digest read_digest(ByteReader& in) {
  base::Digest out;
  out.high = in.get<uint64_t>();
  out.low = in.get<uint64_t>();
  return out;
}

}  // namespace

void write_pack(const std::string& path, const Fingerprint& fingerprint,
                const std::vector<std::string>& entries) {
  const base::Digest digest = fingerprint.digest();
  const std::string described = fingerprint.serialize();
  ByteWriter head;
  uint64_t offset = kStartBytes + 8 + described.size() + 8 + entries.size() * kPlaceBytes + 16;
  head.add_bytes(kMagic);
  head.add<uint32_t>(kVersion);
  head.add<uint64_t>(offset);
  head.add_text(described);
  head.add<uint64_t>(entries.size());
  for (const std::string& entry : entries) {
    std::string words;
    if (read_entry_key(entry, digest, words) != EntryState::kGood) {
      throw std::runtime_error("an entry that is not of this fingerprint");
    }
    add(head, base::digest(words));
    head.add<uint64_t>(offset);
    head.add<uint64_t>(entry.size());
    offset += entry.size();
  }
  std::string front = head.take();
  ByteWriter tail;
  add(tail, base::digest(front));
  front += tail.take();

  // Made anew: what somebody has put in its place is neither followed nor written.
  const std::string temporary = path + ".tmp-" + std::to_string(getpid());
  unlink(temporary.c_str());
  File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) fail(path, "cannot be written: " + reason(errno) + ".");
  int error = write_all(file, front);
  for (size_t i = 0; error == 0 && i < entries.size(); ++i) error = write_all(file, entries[i]);
  if (error == 0 && !file.close()) error = errno;
  if (error == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    unlink(temporary.c_str());
    fail(path, "cannot be written: " + reason(error) + ".");
  }
}

void Pack::read_front(const std::string& path) {
  try {
    file_ = open_own_file(AT_FDCWD, path, path, Links::kFollow);
  } catch (const UnsafeFile& problem) {
    fail(path, std::string("is not used: ") + problem.what() +
                   ". A pack is machine code: if you trust it, make a copy of your own with `cp` "
                   "and load that.");
  }
  if (!file_) fail(path, "cannot be read: " + reason(errno) + ".");
  const std::string start = read_at(file_, 0, kStartBytes);
  if (!start.starts_with(kMagic)) fail(path, "is not a pack of compiled programs.");
  const uint64_t file_size = size_of(file_);
  try {
    ByteReader head(std::string_view(start).substr(kMagic.size()));
    if (const auto version = head.get<uint32_t>(); version != kVersion) {
      fail(path, "has format " + std::to_string(version) + "; this version reads " +
                     std::to_string(kVersion) + ".");
    }
    const auto front_size = head.get<uint64_t>();
    if (front_size > file_size || front_size < kStartBytes + 16) throw BadBytes("it is too short");
    if (front_size > kMaxFrontBytes) throw BadBytes("its index is too large");
    const std::string front = read_at(file_, 0, front_size);
    if (front.size() != front_size) throw BadBytes("it is too short");
    const std::string_view body = std::string_view(front).substr(0, front_size - 16);
    ByteReader tail(std::string_view(front).substr(body.size()));
    if (!(read_digest(tail) == base::digest(body))) throw BadBytes("its checksum is wrong");
    ByteReader in(body.substr(kStartBytes));
    auto parsed = Fingerprint::parse(in.text());
    if (!parsed) throw BadBytes("its description cannot be read");
    fingerprint_ = std::move(*parsed);
    digest_ = fingerprint_.digest();
    index_.resize(in.count<uint64_t>(kPlaceBytes));
    uint64_t offset = front_size;  // one after another, so that no byte is left out
    for (size_t i = 0; i < index_.size(); ++i) {
      Place& place = index_[i];
      place.key = read_digest(in);
      place.offset = in.get<uint64_t>();
      place.size = in.get<uint64_t>();
      if (place.offset != offset) throw BadBytes("its index is wrong");
      if (place.size > file_size - offset) throw BadBytes("it is too short");
      offset += place.size;
      by_key_[place.key.low].push_back(i);
    }
    if (!in.done()) throw BadBytes("its index is wrong");
    if (offset != file_size) throw BadBytes("it is too long");
  } catch (const BadBytes& error) {
    damaged(path, error.what());
  }
}

void Pack::check_entries(const std::string& path) const {
  for (size_t i = 0; i < index_.size(); ++i) {
    std::string words;
    if (entry_size(read_at(file_, index_[i].offset, kEntryStartBytes)) != index_[i].size ||
        read_entry_key(entry(i), digest_, words) != EntryState::kGood ||
        !(base::digest(words) == index_[i].key)) {
      damaged(path, "program " + std::to_string(i + 1) + " of " + std::to_string(index_.size()));
    }
  }
}

Pack Pack::open(const std::string& path) {
  Pack pack;
  pack.read_front(path);
  pack.check_entries(path);
  return pack;
}

Pack Pack::open(const std::string& path, const Fingerprint& here) {
  Pack pack;
  pack.read_front(path);
  if (!(pack.digest_ == here.digest())) {
    fail(path, "was made for another compiler, device or build:\n" +
                   pack.fingerprint_.differences(here) +
                   "Make it again here with `torch-tpu precompile`.");
  }
  pack.check_entries(path);
  return pack;
}

std::string Pack::entry(size_t i) const {
  const Place& place = index_.at(i);
  return read_at(file_, place.offset, place.size);
}

std::optional<std::string> Pack::load(Words words) const {
  const base::Digest key = digest_of(words);
  const auto found = by_key_.find(key.low);
  if (found == by_key_.end()) return std::nullopt;
  for (const size_t i : found->second) {
    if (!(index_[i].key == key)) continue;
    const std::string bytes = entry(i);
    std::string_view blob;
    const EntryState state = decode_entry(bytes, digest_, words, blob);
    if (state == EntryState::kGood) return std::string(blob);
    if (state == EntryState::kBad) throw BadBytes("the pack has changed since it was loaded");
  }
  return std::nullopt;
}

}  // namespace torch_tpu::cache
