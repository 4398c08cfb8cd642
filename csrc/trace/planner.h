// Where Fused Eager cuts the op stream into programs by itself. A pure function of the stream: no
// clock, no counter that outlives a cut, so the same code cuts alike in every process, and a loop of
// any length falls into step with itself (content-defined chunking, as backup tools do it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch_tpu::trace {

// All parameters of the planner. See docs/fused.md.
struct PlannerLimits {
  size_t min_nodes = 64;    // a soft cut leaves at least this many before it; 1 to max_nodes
  size_t max_nodes = 1024;  // so many pending nodes force a soft cut; 2 to 65536
  // Bytes of all pending results together, an upper bound of what is alive: 1 MiB and up.
  int64_t max_bytes = int64_t{4} << 30;
};

class Planner {
 public:
  explicit Planner(const PlannerLimits& limits) : limits_(limits) {}

  // A node was added to the pending ones. `flavor` stands for its op, ranks and dtypes; sizes are
  // left out, so that a growing sequence does not move the cuts.
  void add(uint64_t flavor, int64_t bytes);

  // True when a cut is due before the next node.
  bool full() const noexcept {
    return hashes_.size() >= limits_.max_nodes || bytes_ > limits_.max_bytes;
  }
  bool over_budget() const noexcept { return bytes_ > limits_.max_bytes; }
  // How many of the pending nodes to cut off when full(): all of them when memory is the reason,
  // else up to the node with the smallest hash between the two lengths.
  size_t choose() const noexcept;

  // The first `count` nodes have left.
  void cut(size_t count);

  size_t pending() const noexcept { return hashes_.size(); }
  const PlannerLimits& limits() const noexcept { return limits_; }
  void set_limits(const PlannerLimits& limits) { limits_ = limits; }

 private:
  static constexpr size_t kWindow = 4;  // nodes a hash looks at, the last one included

  PlannerLimits limits_;
  std::vector<uint64_t> hashes_;  // per pending node, over the window that ends there
  std::vector<int64_t> sizes_;    // beside it
  uint64_t window_[kWindow] = {};
  size_t next_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace torch_tpu::trace
