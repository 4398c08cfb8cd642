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

// Against the newest few.
void FusedCache::compare(trace::FusedProgram& program) const {
  constexpr int kLook = 16;
  const trace::FusedProgram* nearest = nullptr;
  size_t most = 0;
  int looked = 0;
  for (auto at = recent_.begin(); at != recent_.end() && looked < kLook; ++at, ++looked) {
    const size_t alike = program.alike(**at);
    if (alike > most) {
      nearest = at->get();
      most = alike;
    }
  }
  if (nearest == nullptr) return;
  trace::FusedProgram::News& news = program.news;
  news.alone = false;
  while (news.at < most && nearest->nodes[news.at] == program.nodes[news.at]) ++news.at;
  if (news.at < nearest->nodes.size()) news.before = nearest->nodes[news.at];
  if (news.at < program.nodes.size()) news.after = program.nodes[news.at];
}

void FusedCache::insert(trace::FusedPtr program) {
  trace::FusedPtr dropped;  // freed outside the lock
  std::lock_guard lock(mutex_);
  compare(*program);
  recent_.push_front(program);
  by_hash_.emplace(program->hash, recent_.begin());
  order_.push_back(std::move(program));
  if (recent_.size() > capacity_) dropped = drop_oldest();
}

trace::FusedPtr FusedCache::drop_oldest() {
  trace::FusedPtr dropped = recent_.back();
  const auto [first, last] = by_hash_.equal_range(dropped->hash);
  const auto at = std::find_if(first, last, [&](auto& item) { return *item.second == dropped; });
  by_hash_.erase(at);
  recent_.pop_back();
  std::erase(order_, dropped);
  ++stats_.evictions;
  return dropped;
}

bool FusedCache::let_go() {
  std::vector<trace::FusedPtr> programs;  // freed outside the lock, as the families are
  std::vector<std::shared_ptr<trace::Family>> families;
  std::lock_guard lock(mutex_);
  for (size_t n = (recent_.size() + 3) / 4; n > 0; --n) programs.push_back(drop_oldest());
  for (size_t n = (families_.size() + 3) / 4; n > 0; --n) families.push_back(drop_oldest_family());
  // Bounded programs stay in the report only as long as their family does.
  std::erase_if(order_, [&](const trace::FusedPtr& each) {
    if (each->bounds == nullptr || each.use_count() > 1) return false;
    programs.push_back(each);
    return true;
  });
  return !programs.empty() || !families.empty();
}

namespace {
constexpr size_t kMaxFamilies = 1024;
constexpr size_t kMaxBounded = 512;
}  // namespace

void FusedCache::insert_bounded(trace::FusedPtr program) {
  std::lock_guard lock(mutex_);
  ++stats_.bounded;
  order_.push_back(std::move(program));
  // For reports only, so a long list is cut.
  const auto is_bounded = [](const trace::FusedPtr& each) { return each->bounds != nullptr; };
  if (std::count_if(order_.begin(), order_.end(), is_bounded) <= std::ptrdiff_t{kMaxBounded})
    return;
  order_.erase(std::find_if(order_.begin(), order_.end(), is_bounded));
}

void FusedCache::count_bounded_run() {
  std::lock_guard lock(mutex_);
  ++stats_.bounded_runs;
}

std::shared_ptr<trace::Family> FusedCache::family(trace::Key structure) {
  const uint64_t hash = structure.hash();
  std::shared_ptr<trace::Family> dropped;  // freed outside the lock
  std::lock_guard lock(mutex_);
  const auto [first, last] = families_by_hash_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (!((*at->second)->structure() == structure)) continue;
    families_.splice(families_.begin(), families_, at->second);
    return families_.front();
  }
  families_.push_front(std::make_shared<trace::Family>(std::move(structure)));
  families_by_hash_.emplace(hash, families_.begin());
  if (families_.size() > kMaxFamilies) dropped = drop_oldest_family();
  return families_.front();
}

std::shared_ptr<trace::Family> FusedCache::drop_oldest_family() {
  std::shared_ptr<trace::Family> dropped = families_.back();
  const auto [begin, end] = families_by_hash_.equal_range(dropped->structure().hash());
  const auto at =
      std::find_if(begin, end, [&](const auto& item) { return *item.second == dropped; });
  families_by_hash_.erase(at);
  families_.pop_back();
  return dropped;
}

void FusedCache::clear() {
  std::lock_guard lock(mutex_);
  families_by_hash_.clear();
  families_.clear();
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
