#include "csrc/distributed/history.h"

#include <algorithm>
#include <sstream>

#include "csrc/base/hash.h"

namespace torch_tpu::distributed {

void History::add(const CollectivePtr& call) {
  last_ = call->seq;
  hash_ = base::hash_combine(hash_, call->fingerprint);
  ring_[last_ % kSize] = {call, hash_};
}

const History::Entry* History::find(uint64_t seq) const {
  const Entry& entry = ring_[seq % kSize];
  return entry.call && entry.call->seq == seq ? &entry : nullptr;
}

std::vector<History::Mark> History::marks() const {
  std::vector<Mark> found;
  for (const uint64_t back : {255, 128, 64, 32, 16, 8, 7, 6, 5, 4, 3, 2, 1, 0}) {
    if (back >= last_) continue;
    if (const Entry* entry = find(last_ - back)) found.emplace_back(last_ - back, entry->hash);
  }
  return found;
}

std::optional<uint64_t> History::first_difference(const std::vector<Mark>& theirs) const {
  for (const auto& [seq, hash] : theirs) {
    const Entry* entry = find(seq);
    if (entry != nullptr && entry->hash != hash) return seq;
  }
  return std::nullopt;
}

const Collective* History::last() const { return at(last_); }

const Collective* History::at(uint64_t seq) const {
  const Entry* entry = find(seq);
  return entry == nullptr ? nullptr : entry->call.get();
}

std::vector<CollectivePtr> History::calls() const {
  std::vector<CollectivePtr> found;
  for (uint64_t seq = last_ - std::min<uint64_t>(last_, kSize - 1); seq <= last_; ++seq) {
    if (const Entry* entry = find(seq)) found.push_back(entry->call);
  }
  return found;
}

std::string encode_marks(const std::vector<History::Mark>& marks) {
  std::string text;
  for (const auto& [seq, hash] : marks) {
    text += std::to_string(seq) + " " + std::to_string(hash) + " ";
  }
  return text;
}

std::vector<History::Mark> decode_marks(const std::string& text) {
  std::vector<History::Mark> marks;
  std::istringstream words(text);
  for (uint64_t seq = 0, hash = 0; words >> seq >> hash;) marks.emplace_back(seq, hash);
  return marks;
}

}  // namespace torch_tpu::distributed
