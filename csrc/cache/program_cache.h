// What is known of calls, their programs above all: an open hash table with structural equality,
// bounded by evicting the programs that were not used for longest. Thread-safe; a lookup holds the
// lock for a few dozen nanoseconds and never while compiling or running.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/cache/program_info.h"
#include "csrc/trace/key.h"
#include "csrc/trace/program.h"

namespace torch_tpu::cache {

struct CacheStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t programs = 0;
  uint64_t evictions = 0;
};

class ProgramCache {
 public:
  static ProgramCache& get();
  explicit ProgramCache(size_t capacity);

  // Not known (trace::is_known) on a miss.
  trace::Answer find(const trace::Key& key, uint64_t hash);
  // Two threads may build the same program; the first one in wins and is returned.
  trace::Answer insert(const trace::Key& key, uint64_t hash, trace::Answer answer);
  void clear();
  // Drops the quarter not used for longest; false when there was nothing to drop.
  bool let_go();
  // Those that can run or were given up, in no order.
  std::vector<ProgramInfo> programs();
  // All that can run.
  std::vector<trace::ProgramPtr> runnable();
  CacheStats stats();
  void reset_stats();

 private:
  struct Slot {
    uint64_t hash = 0;
    uint64_t last_used = 0;
    uint64_t hits = 0;
    std::unique_ptr<trace::Key> key;  // null: free
    trace::Answer answer;
  };
  size_t probe(const trace::Key& key, uint64_t hash) const;
  void grow();
  std::vector<Slot> evict(size_t parts);

  std::mutex mutex_;
  std::vector<Slot> slots_;
  size_t size_ = 0;
  size_t capacity_;
  uint64_t clock_ = 0;
  CacheStats stats_;
};

}  // namespace torch_tpu::cache
