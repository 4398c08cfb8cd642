#include "csrc/cache/disk_cache.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <vector>

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "csrc/base/env.h"

namespace torch_tpu::cache {
namespace {

constexpr const char* kSuffix = ".program";
constexpr const char* kTemporary = "tmp-";
constexpr const char* kDescription = "namespace.json";
constexpr int64_t kTouchAfter = 24 * 3600;  // seconds: a hit marks an entry as used once a day
constexpr int64_t kStaleAfter = 3600;       // a temporary file this old has lost its process
constexpr int64_t kEvictionsPerBound = 16;  // looks through the folder per bound's worth of stores

std::string name_of(Words words) { return digest_of(words).hex() + kSuffix; }

int64_t now() { return static_cast<int64_t>(::time(nullptr)); }

// Different on each call, in this process and in others.
std::string unique() {
  static std::atomic<uint64_t> serial{0};
  const auto clock = std::chrono::steady_clock::now().time_since_epoch().count();
  const std::string seed = std::to_string(getpid()) + "-" + std::to_string(serial++);
  return seed + "-" + base::digest(seed + std::to_string(clock)).hex().substr(0, 8);
}

// A subfolder of ours, as Fingerprint::folder_name() names them: nothing else is touched.
bool is_home(const std::string& name) {
  const size_t dash = name.rfind('-');
  return dash != name.npos && dash > 0 && name.size() - dash - 1 == 32 &&
         name.find_first_not_of("0123456789abcdef", dash + 1) == name.npos;
}

std::atomic<DiskCache*> started{nullptr};

void default_warn(const std::string& text) { TORCH_WARN(text); }

}  // namespace

struct DiskCache::Folders {
  File root;
  File home;  // of the fingerprint
};

DiskCache* DiskCache::get() {
  // Leaked, as programs are.
  static DiskCache* const cache = []() -> DiskCache* {
    const std::string folder = base::env_cache_dir();
    const int64_t bound = base::env_cache_bytes();
    if (folder.empty()) return nullptr;
    auto* made = new DiskCache(folder, Fingerprint::current(), bound);
    started = made;
    return made;
  }();
  return cache;
}

DiskCache* DiskCache::if_started() { return started; }

DiskCache::DiskCache(std::string folder, const Fingerprint& fingerprint, int64_t max_bytes,
                     Warn warn)
    : folder_(std::move(folder)),
      fingerprint_(fingerprint),
      digest_(fingerprint.digest()),
      subfolder_(fingerprint.folder_name()),
      max_bytes_(max_bytes),
      warn_(warn ? std::move(warn) : Warn(default_warn)) {}

DiskStats DiskCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void DiskCache::turn_off(const std::string& problem) {
  if (off_.exchange(true)) return;
  warn_("Compiled programs are not kept between runs: " + problem +
        " Everything works, but each run compiles again. TORCH_TPU_CACHE_DIR names another folder, "
        "or is 'off'.");
}

std::shared_ptr<const DiskCache::Folders> DiskCache::open() {
  auto folders = std::make_shared<Folders>();
  try {
    make_folders(folder_);
    folders->root = open_own_folder(AT_FDCWD, folder_, folder_);
    make_folder(folders->root.fd(), subfolder_);
    folders->home = open_own_folder(folders->root.fd(), subfolder_, folder_ + "/" + subfolder_);
  } catch (const UnsafeFolder& problem) {
    turn_off(problem.what());
    return nullptr;
  } catch (const std::system_error& problem) {
    turn_off(std::string("the folder ") + folder_ + " cannot be used (" + problem.code().message() +
             ").");
    return nullptr;
  }
  return folders;
}

std::shared_ptr<const DiskCache::Folders> DiskCache::folders() {
  if (off_) return nullptr;
  const std::lock_guard lock(mutex_);
  if (!folders_) folders_ = open();
  return folders_;
}

File DiskCache::read(const Folders& at, const std::string& name, std::string& bytes) {
  try {
    const std::string shown = folder_ + "/" + subfolder_ + "/" + name;
    File file = open_own_file(at.home.fd(), name, shown, Links::kRefuse);
    if (!file) return {};
    // Only what says that it is an entry of this very size is read: no memory for anything else.
    const uint64_t size = size_of(file);
    if (entry_size(read_at(file, 0, kEntryStartBytes)) != size) {
      damaged(name, "its header does not fit its " + std::to_string(size) + " bytes");
      return {};
    }
    bytes = read_at(file, 0, size);
    return file;
  } catch (const UnsafeFile& problem) {
    refuse(problem.what());
  } catch (const std::bad_alloc&) {  // it is compiled again, which takes less
  }
  return {};
}

std::optional<std::string> DiskCache::load(Words words) {
  const auto at = folders();
  if (!at) return std::nullopt;
  const std::string name = name_of(words);
  std::string bytes;
  const File file = read(*at, name, bytes);
  if (!file) {
    count([](DiskStats& stats) { ++stats.misses; });
    return std::nullopt;
  }
  std::string_view blob;
  const EntryState state = decode_entry(bytes, digest_, words, blob);
  if (state != EntryState::kGood) {
    if (state == EntryState::kBad) damaged(name, "its checksum is wrong");
    count([](DiskStats& stats) { ++stats.misses; });
    return std::nullopt;
  }
  if (now() - modified(file) > kTouchAfter) futimens(file.fd(), nullptr);  // best effort
  count([&](DiskStats& stats) {
    ++stats.hits;
    stats.bytes_read += bytes.size();
  });
  return std::string(blob);
}

void DiskCache::damaged(const std::string& name, const std::string& why) {
  if (const auto at = folders()) unlinkat(at->home.fd(), name.c_str(), 0);
  count([](DiskStats& stats) { ++stats.damaged; });
  if (said_damaged_.exchange(true)) return;
  warn_("A stored program was damaged (" + why + ") and has been removed: " + folder_ + "/" +
        subfolder_ + "/" + name + ". It is compiled again.");
}

// Not removed, so that somebody can look at it; the program that is compiled in its place is.
void DiskCache::refuse(const std::string& why) {
  count([](DiskStats& stats) { ++stats.refused; });
  if (said_refused_.exchange(true)) return;
  warn_("A stored program is not used: " + why +
        ". It is machine code, so only files that nobody else can write are used. It is compiled "
        "again, as is every other file of this kind; `torch-tpu cache clear` removes them all.");
}

void DiskCache::drop(Words words, const std::string& why) noexcept {
  try {
    damaged(name_of(words), why);
  } catch (...) {  // out of memory
  }
}

void DiskCache::store(Words words, std::string_view blob) noexcept {
  if (off_ || read_only_) return;
  try {
    store_entry(words, encode_entry(digest_, words, blob));
  } catch (...) {  // out of memory
    count([](DiskStats& stats) { ++stats.failures; });
  }
}

bool DiskCache::write(const Folders& at, const std::string& name, std::string_view bytes) {
  const std::string temporary = kTemporary + unique();
  File file(openat(at.home.fd(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file && errno == ENOENT) return false;
  if (!file) throw std::system_error(errno, std::generic_category());
  int error = write_all(file, bytes);
  if (error == 0 && !file.close()) error = errno;  // some file systems say only now
  if (error == 0 && renameat(at.home.fd(), temporary.c_str(), at.home.fd(), name.c_str()) != 0) {
    error = errno;
  }
  if (error == 0) return true;
  unlinkat(at.home.fd(), temporary.c_str(), 0);
  throw std::system_error(error, std::generic_category());
}

// For people: what the folder's name stands for.
void DiskCache::write_description(const Folders& at) {
  struct stat info{};
  if (fstatat(at.home.fd(), kDescription, &info, 0) != 0) {
    write(at, kDescription, fingerprint_.json());
  }
}

void DiskCache::store_entry(Words words, std::string_view entry) noexcept {
  if (off_ || read_only_) return;
  if (max_bytes_ > 0 && static_cast<int64_t>(entry.size()) > max_bytes_) return;
  if (entry.size() > kMaxEntryBytes) return;
  try {
    const std::string name = name_of(words);
    auto at = folders();
    if (at && !write(*at, name, entry)) {  // somebody removed the folder: make it again
      {
        const std::lock_guard lock(mutex_);
        if (folders_ == at) folders_.reset();
      }
      at = folders();
      if (at && !write(*at, name, entry)) throw std::system_error(ENOENT, std::generic_category());
    }
    if (!at) return;
    write_description(*at);
    count([&](DiskStats& stats) {
      ++stats.stores;
      stats.bytes_written += entry.size();
    });
    if (time_to_evict(entry.size())) evict();
  } catch (const std::system_error& problem) {
    count([](DiskStats& stats) { ++stats.failures; });
    const int code = problem.code().value();
    if (code == EMFILE || code == ENFILE || code == EINTR) return;      // may go better next time
    if (code == EISDIR || code == ENOTEMPTY || code == EEXIST) return;  // a folder in its place
    if (read_only_.exchange(true)) return;
    warn_("Programs compiled from now on are not kept for later runs: writing to " + folder_ +
          " failed (" + problem.code().message() +
          "). TORCH_TPU_CACHE_DIR names another folder, or is 'off'.");
  } catch (...) {  // out of memory
    count([](DiskStats& stats) { ++stats.failures; });
  }
}

// Once this process has written a step's bytes, so that alone it never passes the bound; and by
// chance, with a probability that grows with the bytes, so that any number of processes keep to it,
// however little each writes, without any of them counting for the others.
bool DiskCache::time_to_evict(size_t bytes) {
  if (max_bytes_ <= 0) return false;
  const int64_t step = std::max<int64_t>(1, max_bytes_ / kEvictionsPerBound);
  const auto written = static_cast<int64_t>(bytes);
  if (since_eviction_.fetch_add(written) + written >= step) {
    since_eviction_ = 0;
    return true;
  }
  const double chance = static_cast<double>(base::digest(unique()).low >> 11) * 0x1p-53;
  return chance < static_cast<double>(bytes) / static_cast<double>(step);
}

void DiskCache::evict() {
  const auto at = folders();
  if (!at) return;
  struct Entry {
    int64_t used;
    int64_t bytes;
    size_t home;
    std::string name;
  };
  std::vector<File> homes;
  std::vector<Entry> entries;
  int64_t total = 0;
  const int64_t time = now();
  for (const std::string& home : list_folder(at->root)) {
    if (!is_home(home)) continue;
    File folder(
        openat(at->root.fd(), home.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!folder) continue;
    size_t kept = 0;
    for (const std::string& name : list_folder(folder)) {
      struct stat info{};
      if (fstatat(folder.fd(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
      if (name.starts_with(kTemporary)) {
        if (time - info.st_mtime > kStaleAfter) unlinkat(folder.fd(), name.c_str(), 0);
      } else if (name.ends_with(kSuffix)) {
        entries.push_back({info.st_mtime, info.st_size, homes.size(), name});
        total += info.st_size;
        ++kept;
      }
    }
    // Of a build that is gone. A process that still writes there makes it again.
    struct stat info{};
    if (kept == 0 && home != subfolder_ && fstat(folder.fd(), &info) == 0 &&
        time - info.st_mtime > kStaleAfter) {
      unlinkat(folder.fd(), kDescription, 0);
      unlinkat(at->root.fd(), home.c_str(), AT_REMOVEDIR);
    }
    homes.push_back(std::move(folder));
  }
  // A step below the bound, for what is written until the next look.
  const int64_t room = max_bytes_ / kEvictionsPerBound;
  if (max_bytes_ <= 0 || total <= max_bytes_ - room) return;
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  uint64_t evicted = 0;
  for (const Entry& entry : entries) {
    if (total <= max_bytes_ - 2 * room) break;
    if (unlinkat(homes[entry.home].fd(), entry.name.c_str(), 0) == 0) ++evicted;
    total -= entry.bytes;
  }
  count([&](DiskStats& stats) { stats.evictions += evicted; });
}

void DiskCache::for_each(const std::function<void(const std::string& entry)>& visit) {
  const auto at = folders();
  if (!at) return;
  for (const std::string& name : list_folder(at->home)) {
    std::string bytes;
    if (name.ends_with(kSuffix) && read(*at, name, bytes)) visit(bytes);
  }
}

}  // namespace torch_tpu::cache
