#include "csrc/cache/pack.h"

#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "csrc/cache/bytes.h"

namespace torch_tpu::cache {
namespace {

constexpr std::string_view kMagic = "TPUPACK\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kStartBytes = 20;  // magic, version, size of the front
constexpr size_t kPlaceBytes = 32;

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw std::runtime_error("the pack " + path + " " + why);
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

  const std::string temporary = path + ".tmp-" + std::to_string(getpid());
  File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
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
  file_ = File(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_) fail(path, "cannot be read: " + reason(errno) + ".");
  struct stat info{};
  std::string start = read_at(file_, 0, kStartBytes);
  if (fstat(file_.fd(), &info) != 0 || !S_ISREG(info.st_mode) || !start.starts_with(kMagic)) {
    fail(path, "is not a pack of compiled programs.");
  }
  const auto file_size = static_cast<uint64_t>(info.st_size);
  try {
    ByteReader head(std::string_view(start).substr(kMagic.size()));
    if (const auto version = head.get<uint32_t>(); version != kVersion) {
      fail(path, "has format " + std::to_string(version) + "; this version reads " +
                     std::to_string(kVersion) + ".");
    }
    const auto front_size = head.get<uint64_t>();
    if (front_size > file_size || front_size < kStartBytes + 16) throw BadBytes("it is too short");
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
    for (size_t i = 0; i < index_.size(); ++i) {
      Place& place = index_[i];
      place.key = read_digest(in);
      place.offset = in.get<uint64_t>();
      place.size = in.get<uint64_t>();
      if (place.offset > file_size || place.size > file_size - place.offset) {
        throw BadBytes("it is too short");
      }
      by_key_[place.key.low].push_back(i);
    }
  } catch (const BadBytes& error) {
    fail(path, std::string("is damaged (") + error.what() + ").");
  }
}

Pack Pack::open(const std::string& path) {
  Pack pack;
  pack.read_front(path);
  return pack;
}

Pack Pack::open(const std::string& path, const Fingerprint& here) {
  Pack pack = open(path);
  if (!(pack.digest_ == here.digest())) {
    fail(path, "was made for another compiler, device or build:\n" +
                   pack.fingerprint_.differences(here) +
                   "Make it again here with `torch-tpu precompile`.");
  }
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
    if (decode_entry(bytes, digest_, words, blob) == EntryState::kGood) return std::string(blob);
  }
  return std::nullopt;
}

}  // namespace torch_tpu::cache
