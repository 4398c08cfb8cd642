#include "csrc/cache/fused_cache.h"

#include <algorithm>

namespace torch_tpu::cache {

FusedCache& FusedCache::get() {
  // Leaked: programs must not be freed after the plugin at exit.
  static auto* cache = new FusedCache(2048);
  return *cache;
}

trace::FusedPtr FusedCache::find(const trace::Signature& signature) {
  std::lock_guard lock(mutex_);
  const auto [first, last] = by_hash_.equal_range(signature.hash);
  for (auto at = first; at != last; ++at) {
    if ((*at->second)->words != signature.words) continue;
    recent_.splice(recent_.begin(), recent_, at->second);
    ++stats_.hits;
    return *at->second;
  }
  ++stats_.misses;
  return {};
}

void FusedCache::insert(trace::FusedPtr program) {
  trace::FusedPtr dropped;  // freed outside the lock
  std::lock_guard lock(mutex_);
  recent_.push_front(program);
  by_hash_.emplace(program->hash, recent_.begin());
  order_.push_back(std::move(program));
  if (recent_.size() <= capacity_) return;
  dropped = recent_.back();
  const auto [first, last] = by_hash_.equal_range(dropped->hash);
  const auto at = std::find_if(first, last, [&](auto& item) { return *item.second == dropped; });
  by_hash_.erase(at);
  recent_.pop_back();
  std::erase(order_, dropped);
  ++stats_.evictions;
}

void FusedCache::clear() {
  std::lock_guard lock(mutex_);
  by_hash_.clear();
  recent_.clear();
  order_.clear();
}

std::vector<trace::FusedPtr> FusedCache::programs() {
  std::lock_guard lock(mutex_);
  return order_;
}

FusedStats FusedCache::stats() {
  std::lock_guard lock(mutex_);
  return stats_;
}

void FusedCache::count_failure() {
  std::lock_guard lock(mutex_);
  ++stats_.failures;
}

void FusedCache::reset_stats() {
  std::lock_guard lock(mutex_);
  stats_ = {};
}

}  // namespace torch_tpu::cache
