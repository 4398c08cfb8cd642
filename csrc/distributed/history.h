// The last collectives of a group, with a running hash over all of them: two ranks that have done
// the same so far have the same hash. Costs the calls nothing but the hash; the watchdogs compare.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/distributed/collective.h"

namespace torch_tpu::distributed {

// Not thread-safe.
class History {
 public:
  static constexpr size_t kSize = 256;

  // Collectives only, in their order.
  void add(const CollectivePtr& call);

  using Mark = std::pair<uint64_t, uint64_t>;  // number of a collective; the hash after it
  // Some of the last ones, close together at the end: another rank finds one that it has called
  // as well.
  std::vector<Mark> marks() const;
  // The first mark of another rank that we have a different hash for.
  std::optional<uint64_t> first_difference(const std::vector<Mark>& theirs) const;
  std::vector<CollectivePtr> calls() const;  // oldest first
  const Collective* last() const;            // null before the first
  const Collective* at(uint64_t seq) const;  // null where it is not among the last ones

 private:
  struct Entry {
    CollectivePtr call;
    uint64_t hash = 0;
  };
  const Entry* find(uint64_t seq) const;

  std::array<Entry, kSize> ring_;
  uint64_t last_ = 0;
  uint64_t hash_ = 0;
};

std::string encode_marks(const std::vector<History::Mark>& marks);
std::vector<History::Mark> decode_marks(const std::string& text);

}  // namespace torch_tpu::distributed
