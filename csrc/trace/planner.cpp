#include "csrc/trace/planner.h"

#include <algorithm>
#include <numeric>

#include "csrc/base/hash.h"

namespace torch_tpu::trace {

void Planner::add(uint64_t flavor, int64_t bytes) {
  window_[next_ % kWindow] = flavor;
  ++next_;
  uint64_t hash = 0;
  for (size_t i = 0; i < kWindow; ++i) {
    hash = base::hash_combine(hash, window_[(next_ + i) % kWindow]);
  }
  hashes_.push_back(hash);
  sizes_.push_back(bytes);
  bytes_ += bytes;
  find_anchor(hashes_.size() - 1);
}

void Planner::find_anchor(size_t from) {
  for (size_t i = from; i < hashes_.size(); ++i) {
    if (i == 0 || hashes_[i] < hashes_[first_]) {
      first_ = before_ = newest_ = i;
    } else if (hashes_[i] == hashes_[first_]) {
      before_ = newest_;
      newest_ = i;
    }
  }
}

size_t Planner::choose() const noexcept {
  if (over_budget() || hashes_.size() <= limits_.min_nodes) return hashes_.size();
  if (repeats()) return before_ + 1;
  const auto first = hashes_.begin() + static_cast<std::ptrdiff_t>(limits_.min_nodes - 1);
  return static_cast<size_t>(std::min_element(first, hashes_.end()) - hashes_.begin()) + 1;
}

void Planner::cut(size_t count) {
  first_ = before_ = newest_ = 0;
  if (count >= hashes_.size()) {
    hashes_.clear();
    sizes_.clear();
    bytes_ = 0;
    return;
  }
  const auto n = static_cast<std::ptrdiff_t>(count);
  bytes_ -= std::accumulate(sizes_.begin(), sizes_.begin() + n, int64_t{0});
  hashes_.erase(hashes_.begin(), hashes_.begin() + n);
  sizes_.erase(sizes_.begin(), sizes_.begin() + n);
  find_anchor(0);
}

}  // namespace torch_tpu::trace
