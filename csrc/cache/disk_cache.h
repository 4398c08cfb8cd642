// Compiled programs between runs: a folder of byte records that any number of processes share
// without locks. A record is written aside and renamed into place, so a reader finds all of it or
// nothing; a checksum catches what a crash left. What is in the folder is machine code that will be
// run, so neither a folder nor a file that somebody else can write is used. Nothing here ever stops
// the program: a cache that cannot work says so once and is left alone.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "csrc/cache/entry.h"
#include "csrc/cache/files.h"
#include "csrc/cache/fingerprint.h"

namespace torch_tpu::cache {

struct DiskStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t stores = 0;
  uint64_t damaged = 0;  // entries dropped
  uint64_t refused = 0;  // files that somebody else could have written, or that are none
  uint64_t evictions = 0;
  uint64_t failures = 0;  // entries that could not be written
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
};

// Thread-safe.
class DiskCache {
 public:
  using Warn = std::function<void(const std::string&)>;

  // The one of this process: TORCH_TPU_CACHE_DIR for the current fingerprint. Null when it is off.
  // Starts the client.
  static DiskCache* get();
  static DiskCache* if_started();  // null when nobody has asked for it yet
  // `max_bytes` bounds the folder with all its fingerprints; 0: no bound. Touches nothing yet.
  DiskCache(std::string folder, const Fingerprint& fingerprint, int64_t max_bytes, Warn warn = {});

  std::optional<std::string> load(Words words);
  void store(Words words, std::string_view blob) noexcept;
  // The same for an entry already encoded for this fingerprint.
  void store_entry(Words words, std::string_view entry) noexcept;
  // For this process, with a warning.
  void turn_off(const std::string& problem);
  // An entry whose contents turned out to be of no use.
  void drop(Words words, const std::string& why) noexcept;

  // Calls `visit` with each entry of this fingerprint as it is in its file.
  void for_each(const std::function<void(const std::string& entry)>& visit);
  // Removes the least recently used entries until the folder is well below its bound, and temporary
  // files of processes that died. Called by store() now and then.
  void evict();

  const std::string& folder() const { return folder_; }
  bool on() const { return !off_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }
  DiskStats stats() const;

 private:
  struct Folders;                            // open handles
  std::shared_ptr<const Folders> folders();  // opened on first use; null when there are none
  std::shared_ptr<const Folders> open();
  // Throws std::system_error. False: the folder is gone.
  bool write(const Folders& at, const std::string& name, std::string_view bytes);
  void write_description(const Folders& at);
  // All of an entry's file. Empty: there is none, or none to be used, which is said.
  File read(const Folders& at, const std::string& name, std::string& bytes);
  void damaged(const std::string& name, const std::string& why);
  void refuse(const std::string& why);
  bool time_to_evict(size_t bytes);
  template <typename Change>
  void count(Change change) {
    const std::lock_guard lock(mutex_);
    change(stats_);
  }

  const std::string folder_;
  const Fingerprint fingerprint_;
  const base::Digest digest_;
  const std::string subfolder_;
  const int64_t max_bytes_;
  const Warn warn_;

  mutable std::mutex mutex_;  // guards the next two
  std::shared_ptr<const Folders> folders_;
  DiskStats stats_;
  std::atomic<int64_t> since_eviction_{0};  // bytes this process wrote
  std::atomic<bool> off_{false};
  std::atomic<bool> read_only_{false};
  std::atomic<bool> said_damaged_{false};
  std::atomic<bool> said_refused_{false};
};

}  // namespace torch_tpu::cache
