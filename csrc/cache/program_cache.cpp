#include "csrc/cache/program_cache.h"

#include <algorithm>

#include "csrc/base/env.h"
#include "csrc/cache/fused_cache.h"
#include "csrc/pjrt/code_room.h"

namespace torch_tpu::cache {

ProgramCache& ProgramCache::get() {
  // Leaked: programs must not be freed after the plugin at exit.
  static ProgramCache* cache = [] {
    pjrt::set_room_maker([] {
      const bool single = get().let_go();
      return FusedCache::get().let_go() || single;
    });
    return new ProgramCache(static_cast<size_t>(base::env_cache_size()));
  }();
  return *cache;
}

ProgramCache::ProgramCache(size_t capacity)
    : slots_(1024), capacity_(std::max<size_t>(capacity, 8)) {}

// The slot of the key, or the free slot where it belongs.
size_t ProgramCache::probe(const trace::Key& key, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t i = hash & mask;
  while (slots_[i].key && !(slots_[i].hash == hash && *slots_[i].key == key)) i = (i + 1) & mask;
  return i;
}

trace::Answer ProgramCache::find(const trace::Key& key, uint64_t hash) {
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[probe(key, hash)];
  if (!slot.key) {
    ++stats_.misses;
    return {};
  }
  ++stats_.hits;
  ++slot.hits;
  slot.last_used = ++clock_;
  return slot.answer;
}

trace::Answer ProgramCache::insert(const trace::Key& key, uint64_t hash, trace::Answer answer) {
  std::vector<Slot> dropped;  // freed outside the lock
  std::lock_guard lock(mutex_);
  size_t i = probe(key, hash);
  if (slots_[i].key) return slots_[i].answer;
  if (size_ >= capacity_) {
    dropped = evict(8);
    i = probe(key, hash);
  } else if ((size_ + 1) * 2 > slots_.size()) {
    grow();
    i = probe(key, hash);
  }
  slots_[i] = Slot{hash, ++clock_, 0, std::make_unique<trace::Key>(key), answer};
  ++size_;
  return answer;
}

namespace {

template <typename Slots>
void place(Slots& slots, typename Slots::value_type slot) {
  const size_t mask = slots.size() - 1;
  size_t i = slot.hash & mask;
  while (slots[i].key) i = (i + 1) & mask;
  slots[i] = std::move(slot);
}

}  // namespace

void ProgramCache::grow() {
  std::vector<Slot> bigger(slots_.size() * 2);
  for (Slot& slot : slots_) {
    if (slot.key) place(bigger, std::move(slot));
  }
  slots_ = std::move(bigger);
}

// The least recently used part, 1 of `parts`, at once, so that a full cache does not evict on each
// miss.
std::vector<ProgramCache::Slot> ProgramCache::evict(size_t parts) {
  std::vector<uint64_t> ages;
  for (const Slot& slot : slots_) {
    if (slot.key) ages.push_back(slot.last_used);
  }
  if (ages.empty()) return {};
  const size_t drop = std::max<size_t>(1, ages.size() / parts);
  std::nth_element(ages.begin(), ages.begin() + static_cast<std::ptrdiff_t>(drop - 1), ages.end());
  const uint64_t limit = ages[drop - 1];
  std::vector<Slot> kept(slots_.size());
  std::vector<Slot> dropped;
  for (Slot& slot : slots_) {
    if (!slot.key) continue;
    if (slot.last_used <= limit) {
      dropped.push_back(std::move(slot));
    } else {
      place(kept, std::move(slot));
    }
  }
  slots_ = std::move(kept);
  size_ -= dropped.size();
  stats_.evictions += dropped.size();
  return dropped;
}

bool ProgramCache::let_go() {
  std::vector<Slot> dropped;  // freed outside the lock
  std::lock_guard lock(mutex_);
  dropped = evict(4);
  return !dropped.empty();
}

void ProgramCache::clear() {
  std::lock_guard lock(mutex_);
  slots_ = std::vector<Slot>(1024);
  size_ = 0;
}

std::vector<ProgramInfo> ProgramCache::programs() {
  std::lock_guard lock(mutex_);
  std::vector<ProgramInfo> out;
  for (const Slot& slot : slots_) {
    if (!slot.key) continue;
    ProgramInfo info;
    info.hits = slot.hits;
    if (const auto* program = std::get_if<trace::ProgramPtr>(&slot.answer)) {
      info.name = (*program)->name;
      info.fingerprint = (*program)->fingerprint;
      info.runs = (*program)->runs.load(std::memory_order_relaxed);
      info.describe((*program)->code, *program);  // not compiled: only as part of fused programs
    } else if (const auto* refusal =
                   std::get_if<std::shared_ptr<const trace::Refusal>>(&slot.answer)) {
      info.name = (*refusal)->op;
      info.state = ProgramInfo::State::kFailed;
      info.reason = (*refusal)->why;
    } else {
      continue;
    }
    info.ops = {{info.name, 1}};
    out.push_back(std::move(info));
  }
  return out;
}

std::vector<trace::ProgramPtr> ProgramCache::runnable() {
  std::lock_guard lock(mutex_);
  std::vector<trace::ProgramPtr> out;
  for (const Slot& slot : slots_) {
    if (!slot.key) continue;
    if (const auto* program = std::get_if<trace::ProgramPtr>(&slot.answer)) out.push_back(*program);
  }
  return out;
}

CacheStats ProgramCache::stats() {
  std::lock_guard lock(mutex_);
  CacheStats stats = stats_;
  stats.programs = size_;
  return stats;
}

void ProgramCache::reset_stats() {
  std::lock_guard lock(mutex_);
  stats_ = {};
}

}  // namespace torch_tpu::cache
