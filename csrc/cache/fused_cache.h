// Fused programs by their signature: which were seen, which are compiled. Structural equality on a
// hit, bounded by forgetting those not met for longest. Thread-safe.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "csrc/trace/family.h"
#include "csrc/trace/fused.h"

namespace torch_tpu::cache {

struct FusedStats {
  uint64_t hits = 0;      // cuts whose program was there, in any state
  uint64_t misses = 0;    // programs met for the first time
  uint64_t failures = 0;  // compilations
  uint64_t evictions = 0;
  uint64_t bounded = 0;       // programs that serve many sizes, compiled or loaded
  uint64_t bounded_runs = 0;  // of those
};

class FusedCache {
 public:
  static FusedCache& get();
  explicit FusedCache(size_t capacity) : capacity_(capacity) {}

  // Null when it was never seen.
  trace::FusedPtr find(const trace::Signature& signature);
  void insert(trace::FusedPtr program);
  // A program that serves many sizes: its family finds it.
  void insert_bounded(trace::FusedPtr program);
  void count_bounded_run();
  // The family of a structure; made if there is none. The oldest are forgotten.
  std::shared_ptr<trace::Family> family(trace::Key structure);
  void clear();
  // Drops the quarter not met for longest, of programs and of families; false when there was none.
  bool let_go();
  // In the order they were first met.
  std::vector<trace::FusedPtr> programs();

  FusedStats stats();
  void reset_stats();
  void count_failure();

 private:
  trace::FusedPtr drop_oldest();
  std::shared_ptr<trace::Family> drop_oldest_family();
  void compare(trace::FusedProgram& program) const;

  std::mutex mutex_;
  std::list<trace::FusedPtr> recent_;  // last met first
  std::unordered_multimap<uint64_t, std::list<trace::FusedPtr>::iterator> by_hash_;
  std::vector<trace::FusedPtr> order_;
  std::list<std::shared_ptr<trace::Family>> families_;  // last met first
  std::unordered_multimap<uint64_t, std::list<std::shared_ptr<trace::Family>>::iterator>
      families_by_hash_;
  const size_t capacity_;
  FusedStats stats_;
};

}  // namespace torch_tpu::cache
